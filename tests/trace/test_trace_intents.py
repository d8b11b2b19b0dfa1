"""Intents on disk: what is declared is there before its call may begin, and stays until its turn is on record."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.trace import intents as module
from concur_batch.trace.ending import finish
from concur_batch.trace.files import is_locked
from concur_batch.trace.intents import Intents, forget_intents, intent_files, read_intents, unrecorded
from concur_batch.trace.manifest import write_manifest

Row = dict[str, Any]


def intent(turn: int, agent: str = "a/0", seconds: float = 0.0, attempt: int = 0) -> Row:
    calls = [{"call": 0, "name": "bash", "arguments": {"command": f"echo {turn} ü\n"}}]
    key = {"agent_id": agent, "task_id": agent[0], "sample": 0, "attempt": attempt}
    return {**key, "turn": turn, "started_seconds": seconds, "calls": calls}


@asynccontextmanager
async def declaring(
    run_dir: Path, life: int = 0, host: str = "host0", is_recorded: Callable[[int], bool] = lambda number: False
) -> AsyncIterator[Intents]:
    intents = Intents(run_dir, host, life, is_recorded)
    yield intents
    await intents.close()


async def declare(run_dir: Path, *rows: Row, **of: Any) -> None:
    async with declaring(run_dir, **of) as intents:
        await asyncio.gather(*(intents.declare(row["agent_id"], row["turn"], row) for row in rows))


def turns(rows: list[Any]) -> set[int]:
    return {row["turn"] for row in rows}


async def test_what_is_declared_is_read_back_by_life_and_nothing_is_made_before(tmp_path: Path) -> None:
    async with declaring(tmp_path):
        assert (read_intents(tmp_path), [*tmp_path.iterdir()]) == ([], [])
    await declare(tmp_path, intent(1), intent(2))
    await declare(tmp_path, intent(3), host="host1")
    await declare(tmp_path, intent(4), life=1)
    await declare(tmp_path, intent(5), life=11)
    assert read_intents(tmp_path, 1) == [intent(4)]
    assert (turns(read_intents(tmp_path, 0)), turns(read_intents(tmp_path))) == ({1, 2, 3}, {1, 2, 3, 4, 5})


async def test_many_that_come_at_once_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = []
    sync = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (syncs.append(descriptor), sync(descriptor)))
    await declare(tmp_path, *(intent(turn) for turn in range(500)))
    assert turns(read_intents(tmp_path)) == {*range(500)}
    assert len(syncs) <= 3


async def test_nobody_goes_on_before_the_sync_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(descriptor: int) -> None:
        begun.set()
        assert release.wait(30)

    monkeypatch.setattr(os, "fdatasync", slow)
    async with declaring(tmp_path) as intents:
        first = asyncio.create_task(intents.declare("a", 0, intent(0)))
        assert await asyncio.to_thread(begun.wait, 30)
        second = asyncio.create_task(intents.declare("b", 0, intent(0, "b/0")))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not first.done() and not second.done()
        assert is_locked(intent_files(tmp_path)[0]), "a resume waits for its host's end"
        release.set()
        async with asyncio.timeout(30):
            await asyncio.gather(first, second)


async def test_a_sync_that_fails_holds_all_back_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, fails = os.fdatasync, False

    def failing(descriptor: int) -> None:
        if fails:
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", failing)
    async with declaring(tmp_path) as intents:
        await intents.declare("a", 0, intent(0))
        fails = True
        waiting = asyncio.create_task(intents.declare("b", 1, intent(1, "b/0")))
        while intents.last_error is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert f"{intents.last_error}".startswith(f"cannot sync intents {tmp_path}")
        assert (waiting.done(), turns(read_intents(tmp_path))) == (False, {0}), "it is taken back"
        fails = False
        async with asyncio.timeout(30):
            await waiting
        assert (intents.last_error, turns(read_intents(tmp_path))) == (None, {0, 1})


async def test_a_tail_torn_at_any_byte_loses_the_intent_it_is_in_and_no_other(tmp_path: Path) -> None:
    await declare(tmp_path, *(intent(turn) for turn in range(3)))
    (path,) = intent_files(tmp_path)
    content = path.read_bytes()
    for length in range(len(content), -1, -1):
        os.truncate(path, length)
        assert turns(read_intents(tmp_path)) == {*range(content[:length].count(b"\n"))}
    lines = content.splitlines(keepends=True)
    # A machine that lost its power may have kept some pages of what was not synced, in any order.
    path.write_bytes(lines[0] + b"\0" * (len(lines[1]) - 1) + b"\n" + lines[2])
    assert turns(read_intents(tmp_path)) == {0, 2}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.just("declare"), st.just("record"), st.just("store")), max_size=60),
    st.integers(1, 900),
)
def test_no_intent_goes_before_its_turn_is_on_record(steps: list[str], most_bytes: int) -> None:
    async def play(run_dir: Path) -> None:
        begun, handed_over, durable = 0, 0, 0  # turns, in their order; a record has the number of its turn
        async with declaring(run_dir, is_recorded=lambda number: number < durable) as intents:
            for step in steps:
                if step == "declare":
                    await intents.declare("a", begun, intent(begun))
                    begun += 1
                elif step == "record" and handed_over < begun:
                    intents.recorded("a", handed_over, handed_over)
                    handed_over += 1
                elif step == "store":
                    durable = handed_over
                there = read_intents(run_dir)
                assert {*range(durable, begun)} <= turns(there) <= {*range(begun)}
                assert len(there) == len(turns(there))
            assert len(intent_files(run_dir)) == (begun > 0)

    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MOST_BYTES", most_bytes)
        asyncio.run(play(Path(directory)))


async def test_what_is_on_record_takes_no_room_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    async with declaring(tmp_path, is_recorded=lambda number: number < 300) as intents:
        for turn in range(320):
            await intents.declare("a", turn, intent(turn))
            intents.recorded("a", turn, turn)
    (path,) = intent_files(tmp_path)
    assert {*range(300, 320)} <= turns(read_intents(tmp_path)) <= {*range(280, 320)}
    assert path.name != "0-host0-000000.jsonl"


def test_of_a_turn_that_was_begun_again_the_newest_counts_and_none_where_it_is_on_record() -> None:
    cut_off, again = intent(1, seconds=10.0), intent(1, seconds=4.0)
    other, done = intent(1, "b/0", 5.0), intent(0, seconds=3.0)
    rows = [cut_off, done, other, again]
    assert unrecorded(rows, {("a/0", 0, 0)}) == [cut_off, other]
    assert unrecorded(rows, {("a/0", 0, 0), ("b/0", 0, 1), ("a/0", 1, 1)}) == [cut_off]


async def test_a_finished_run_has_none(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    await declare(tmp_path, intent(1))
    await declare(tmp_path, intent(1), life=1)
    assert finish(tmp_path) is None
    assert not (tmp_path / "intents").exists()
    forget_intents(tmp_path)
