from __future__ import annotations

import asyncio
import os
from pathlib import Path

import orjson
import pytest
from trace_rows import part_rows, plain_row, turn

from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.files import TraceError
from concur_batch.trace.journal import read_journal
from concur_batch.trace.recorder import Recorder


def durable_rows(run_dir: Path) -> list[tuple[str, int]]:
    """Agent and turn of every turns row, in Parquet or in the journal."""
    found = [(row["agent_id"], row["turn"]) for row in part_rows(run_dir, "turns")]
    for segment in (run_dir / "journal").iterdir():
        for row in read_journal(segment).rows:
            if row.table == "turns":
                values = orjson.loads(row.json)
                found.append((values["agent_id"], values["turn"]))
    return sorted(found)


async def test_commits_that_come_together_share_a_sync(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.05)
    counts = await asyncio.gather(*(recorder.commit(encode_turn(*turn("a", n))) for n in range(200)))
    assert counts == [1 + n % 3 for n in range(200)]
    totals = await recorder.totals()
    assert totals["rows"] == {"turns": 200, "tools": 199}
    assert totals["syncs"] <= 2
    assert totals["waiting_commits"] == 0
    assert totals["journal_bytes"] == (tmp_path / "journal" / "n-000000.jsonl").stat().st_size
    await recorder.close()
    assert durable_rows(tmp_path) == [("a", n) for n in range(200)]


async def test_a_commit_is_answered_only_after_a_sync_that_began_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []  # size of the journal when each sync began
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        real(descriptor)
        synced.append(size)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    recorder = Recorder(tmp_path, "n", commit_seconds=0.002)
    appended = 0

    async def agent(name: str) -> None:
        nonlocal appended
        for number in range(20):
            lines = encode_turn(*turn(name, number))
            appended += len(lines)
            mine = appended
            await recorder.commit(lines)
            assert synced[-1] >= mine

    await asyncio.gather(*(agent(f"a{index}") for index in range(10)))
    assert len(synced) == (await recorder.totals())["syncs"] < 200


async def test_commits_go_on_during_rotations_and_each_row_is_there_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.001, segment_rows=40)
    committed: list[tuple[str, int]] = []
    rotated = asyncio.Event()

    async def agent(name: str) -> None:
        number = 0
        while not rotated.is_set():
            assert await recorder.commit(encode_turn(*turn(name, number))) == 1 + number % 3
            committed.append((name, number))
            number += 1

    async def rotate() -> None:
        for rotation in range(5):
            await recorder.commit(encode_turn(*turn("r", rotation)))
            committed.append(("r", rotation))
            await recorder.rotate()
        rotated.set()

    await asyncio.gather(rotate(), *(agent(f"a{index}") for index in range(10)))
    await recorder.close()
    totals = await recorder.totals()
    tools = sum(number % 3 for _, number in committed)
    assert totals["rows"] == totals["parquet_rows"] == {"turns": len(committed), "tools": tools}
    assert (totals["unstored_segments"], totals["rejected_rows"], totals["rotation_error"]) == (0, 0, None)
    assert list((tmp_path / "journal").iterdir()) == []
    assert len(list((tmp_path / "turns").iterdir())) >= 5
    assert durable_rows(tmp_path) == sorted(committed)


async def test_rotate_stores_what_was_committed_and_an_old_segment_is_rotated_by_itself(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.001)
    await recorder.commit(encode_turn(*turn("a", 0)))
    await recorder.rotate()
    assert len(part_rows(tmp_path, "turns")) == 1
    await recorder.close()

    recorder = Recorder(tmp_path, "n", commit_seconds=0.001, segment_seconds=0.05)
    await recorder.commit(encode_turn(*turn("a", 3)))
    for _ in range(1000):
        if (await recorder.totals())["parquet_rows"]:
            break
        await asyncio.sleep(0.01)
    assert [row["turn"] for row in part_rows(tmp_path, "turns")] == [0, 3]


async def test_a_failed_sync_fails_the_commits_that_waited_and_records_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.001)
    await recorder.commit(encode_turn(*turn("a", 0)))

    def broken(descriptor: int) -> None:
        raise OSError(5, "ignored")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        results = await asyncio.gather(
            *(recorder.commit(encode_turn(*turn("a", n))) for n in (1, 2)), return_exceptions=True
        )
    assert [type(result) for result in results] == [TraceError, TraceError]
    assert "journal/n-000000.jsonl: Input/output error" in str(results[0])
    assert durable_rows(tmp_path) == [("a", 0)]
    assert await recorder.commit(encode_turn(*turn("a", 2))) == 3  # the caller tries again
    await recorder.close()
    assert durable_rows(tmp_path) == [("a", 0), ("a", 2)]


async def test_a_failed_sync_at_a_rotation_fails_only_the_sealed_segments_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=30)
    await recorder.commit(encode_turn(*turn("a", 0)))
    waiting = asyncio.ensure_future(recorder.commit(encode_turn(*turn("a", 1))))
    await asyncio.sleep(0)
    real, later = os.fdatasync, []
    loop = asyncio.get_running_loop()

    def fail_once(descriptor: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        # A commit into the new segment while the old one's sync runs.
        later.append(asyncio.run_coroutine_threadsafe(recorder.commit(encode_turn(*turn("a", 2))), loop))
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()
        raise OSError(28, "ignored")

    monkeypatch.setattr(os, "fdatasync", fail_once)
    await recorder.rotate()
    with pytest.raises(TraceError, match="No space left on device"):
        await waiting
    assert not later[0].done()
    await recorder.close()
    assert await asyncio.wrap_future(later[0]) == 3
    assert durable_rows(tmp_path) == [("a", 0), ("a", 2)]


async def test_a_rotation_that_fails_loses_nothing_and_is_tried_again(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.001)
    await recorder.commit(encode_turn(*turn("a", 0)))
    (tmp_path / "turns").rmdir()
    with pytest.raises(TraceError, match=r"n-000000\.parquet: No such file"):
        await recorder.rotate()
    await recorder.commit(encode_turn(*turn("a", 3)))
    assert (await recorder.totals())["unstored_segments"] == 1
    (tmp_path / "turns").mkdir()
    await recorder.rotate()
    assert (await recorder.totals())["unstored_segments"] == 0
    assert [row["turn"] for row in part_rows(tmp_path, "turns")] == [0, 3]


async def test_while_nothing_can_be_stored_the_open_segment_goes_on_until_it_is_full(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.001, segment_rows=10)
    (tmp_path / "turns").rmdir()
    for number in range(0, 45, 3):  # a row each
        await recorder.commit(encode_turn(*turn("a", number)))
        with pytest.raises(TraceError):
            await recorder.rotate()
    assert len(list((tmp_path / "journal").iterdir())) == 3  # of 1, 10 and 4 rows
    (tmp_path / "turns").mkdir()
    await recorder.rotate()
    assert (await recorder.totals())["rotation_error"] is None
    assert sorted(row["turn"] for row in part_rows(tmp_path, "turns")) == [*range(0, 45, 3)]
    assert len(list((tmp_path / "turns").iterdir())) == 3


async def test_a_damaged_segment_does_not_hinder_those_after_it(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.001)
    await recorder.commit(encode_turn(*turn("a", 0)) * 2)
    with (tmp_path / "journal" / "n-000000.jsonl").open("r+b") as file:
        file.write(b"damage")
    with pytest.raises(TraceError, match="damaged at byte 0"):
        await recorder.rotate()
    await recorder.commit(encode_turn(*turn("a", 3)))
    with pytest.raises(TraceError, match="damaged at byte 0"):
        await recorder.close()
    assert [path.name for path in (tmp_path / "journal").iterdir()] == ["n-000000.jsonl"]
    assert [row["turn"] for row in part_rows(tmp_path, "turns")] == [3]


async def test_a_new_recorder_recovers_the_one_that_was_killed(tmp_path: Path) -> None:
    killed, other = Recorder(tmp_path, "n"), Recorder(tmp_path, "m")
    await killed.commit(encode_turn(*turn("a", 2)))
    await other.commit(encode_turn(*turn("b", 0)))
    killed._writer.open.close()  # gives up the lock, as the kernel does for a killed process
    recorder = Recorder(tmp_path, "n")
    assert (await recorder.totals())["recovered_rows"] == {"turns": 1, "tools": 2}
    await recorder.commit(encode_turn(*turn("a", 3)))
    await recorder.close()
    assert durable_rows(tmp_path) == [("a", 2), ("a", 3), ("b", 0)]


async def test_after_close_a_commit_is_refused_and_a_cancelled_commit_hinders_none(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.05)
    await recorder.commit(encode_turn(*turn("a", 0)))
    cancelled = asyncio.ensure_future(recorder.commit(encode_turn(*turn("a", 3))))
    kept = asyncio.ensure_future(recorder.commit(encode("agents", plain_row("agents"))))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await kept == 1
    await recorder.close()
    await recorder.close()
    with pytest.raises(TraceError, match="closed"):
        await recorder.commit(encode_turn(*turn("a", 6)))
    assert durable_rows(tmp_path) == [("a", 0), ("a", 3)]
    assert len(part_rows(tmp_path, "agents")) == 1


async def test_rows_that_a_killed_recorder_had_and_never_acknowledged_are_not_doubled(tmp_path: Path) -> None:
    killed = Recorder(tmp_path, "n", commit_seconds=60)
    await killed.commit(encode_turn(*turn("a", 0)))
    unanswered = asyncio.create_task(killed.commit(encode_turn(*turn("a", 1)) + encode_turn(*turn("a", 2))))
    await asyncio.sleep(0.05)
    assert not unanswered.done()
    unanswered.cancel()
    killed._writer.open.close()  # what a kill does to its file and its lock

    restarted = Recorder(tmp_path, "n", commit_seconds=0)
    again = encode_turn(*turn("a", 1)) + encode_turn(*turn("a", 2)) + encode_turn(*turn("a", 3))
    await restarted.commit(again)
    await restarted.close()
    assert durable_rows(tmp_path) == [("a", 0), ("a", 1), ("a", 2), ("a", 3)]


async def test_nothing_is_taken_any_more_of_a_sender_that_is_taken_for_dead(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.01)
    await recorder.commit(encode_turn(*turn("a", 0)), "host0")
    await recorder.fence("host0")
    with pytest.raises(TraceError, match="host0"):
        await recorder.commit(encode_turn(*turn("a", 1)), "host0")
    await recorder.commit(encode_turn(*turn("b", 0)), "host1")
    await recorder.commit(encode("control", plain_row("control")))
    await recorder.close()
    assert durable_rows(tmp_path) == [("a", 0), ("b", 0)]


async def test_an_outage_is_one_text_however_often_it_is_tried(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, "n", commit_seconds=0.001, segment_rows=1)
    (tmp_path / "turns").rmdir()
    told = set()
    for number in (0, 3, 6):
        await recorder.commit(encode_turn(*turn("a", number)))
        for _ in range(10_000):
            if not recorder._rotating.locked() and (await recorder.totals())["rotation_error"]:
                break
            await asyncio.sleep(0.001)
        told.add((await recorder.totals())["rotation_error"])
    assert len(told) == 1 and "n-000000.parquet: No such file" in told.pop()
    (tmp_path / "turns").mkdir()
    await recorder.close()
    assert (await recorder.totals())["rotation_error"] is None
    assert [row["turn"] for row in part_rows(tmp_path, "turns")] == [0, 3, 6]
