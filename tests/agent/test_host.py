"""A host and its agents without Ray: who is tried again and when, and what a host that dies at a bad moment costs."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollout_desk import CONFIG, SUBMIT, TOKENIZER, WORK, Said, SayingEngine
from test_recall import untimed

from concur_batch.agent.host import AgentHost, retry_wait_seconds
from concur_batch.agent.spec import AgentSpec
from concur_batch.control.admission import Admission
from concur_batch.control.member import Beat, Event
from concur_batch.control.rules import Rules
from concur_batch.driver.past import account_of, going_on, read_past
from concur_batch.engine.pools import PoolAddress
from concur_batch.engine.protocol import EngineError, Generation, GenerationRequest
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.recorder import Recorder

GONE = EngineError("gone")


def specs(*names: str) -> list[AgentSpec]:
    return [AgentSpec(f"{name}/0", name, 0, 1, f"Task {name}") for name in names]


class Engine:
    """Answers each agent with the lines of its task, one after the other, the last again and again; but from the
    request on that `hangs` names for a task, it keeps the answer."""

    def __init__(self, lines: Mapping[str, Sequence[Said]]) -> None:
        self._of = {task: SayingEngine(*said) for task, said in lines.items()}
        self.hangs: dict[str, int] = {}
        self.asked: Counter[str] = Counter()

    async def generate(self, request: GenerationRequest) -> Generation:
        prompt = TOKENIZER.decode(request.input_ids.tolist(), skip_special=False)
        task = re.findall(r"user\nTask ([\w-]+)", prompt)[0]
        self.asked[task] += 1
        number = self.asked[task]
        while number >= self.hangs.get(task, math.inf):  # noqa: ASYNC110 - a test changes it
            await asyncio.sleep(0.001)
        return await self._of[task].generate(request)

    async def close(self) -> None: ...


class Controller:
    """Lets everybody in."""

    def __init__(self) -> None:
        self.host: AgentHost | None = None
        self._admission = Admission(Rules(), ["0"], granting=True)
        self._admission.resize({"0": 100}, 0.0)
        self.report = SimpleNamespace(remote=self._report)
        self.beat = SimpleNamespace(remote=self._beat)

    async def _report(self, host: str, events: list[Event]) -> bool:
        assert self.host is not None
        for event in events:
            await self.host.permit(0, self._admission.take(event, 0.0))
        return True

    async def _beat(self, host: str, beats: list[Beat], spent: object) -> bool:
        return True


class Recording:
    """A recorder's handle. The answer to what it is sent of the table `deaf` gets lost: it is recorded all the same."""

    def __init__(self, directory: Path) -> None:
        self.recorder = Recorder(directory, "recorder0", commit_seconds=0.001)
        self.deaf: str | None = None
        self.commit = SimpleNamespace(remote=self._commit)

    async def _commit(self, lines: bytes, sender: str) -> None:
        await self.recorder.commit(lines, sender)
        if self.deaf is not None and f"{self.deaf}\t".encode() in lines:
            await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concur_batch.agent.host.favour_event_loop", lambda: None)
    monkeypatch.setattr("concur_batch.agent.host._LAST_ROWS_SECONDS", 0.05)


@asynccontextmanager
async def hosting(
    directory: Path, recording: Recording, engine: Engine, name: str = "host0", attempts: int = 3
) -> AsyncIterator[AgentHost]:
    """A host of a run in that directory."""
    if not (directory / "model").exists():
        (directory / "model").symlink_to(Path(__file__).parents[2] / "workloads" / "demo_model")
        write_manifest(directory, {})
    pool = PoolAddress("0", "http://engine", None, None, 1, 8000)
    config = replace(CONFIG, name=name, directory=directory, pools=(pool,), attempts=attempts)
    controller = Controller()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("concur_batch.agent.host.connect", lambda *_: engine)
        controller.host = AgentHost(config, controller, recording)
        await controller.host.open()
    yield controller.host
    await controller.host.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - no event tells of rows
            await asyncio.sleep(0.005)


def ends(directory: Path) -> dict[str, list[tuple[int, bool, str, str | None]]]:
    """The attempts that have ended, by task."""
    found: dict[str, list[tuple[int, bool, str, str | None]]] = {}
    for row in sorted(Run(directory).table("agents").to_pylist(), key=lambda row: int(row["attempt"])):
        end = (row["attempt"], row["final"], row["status"], row["failure_class"])
        found.setdefault(row["task_id"], []).append(end)
    return found


@given(st.integers(1, 10_000))
def test_the_waits_between_attempts_double_up_to_half_a_minute_and_differ(failed: int) -> None:
    longest_seconds = {1: 1.0, 2: 2.0, 3: 4.0, 4: 8.0, 5: 16.0}.get(failed, 30.0)
    waits = [retry_wait_seconds(failed) for _ in range(20)]
    assert all(longest_seconds / 2 <= seconds <= longest_seconds for seconds in waits)
    assert len(set(waits)) > 1


async def test_an_agent_that_hangs_delays_no_others_next_attempt_and_attempts_are_capped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []

    def at_once(failed: int) -> float:
        waits.append(failed)
        return 0.0

    monkeypatch.setattr("concur_batch.agent.host.retry_wait_seconds", at_once)
    lines = {"hangs": [SUBMIT], "good": [SUBMIT], "unlucky": [GONE, WORK, GONE, SUBMIT], "hopeless": [GONE]}
    engine, recording = Engine(lines), Recording(tmp_path)
    engine.hangs = {"hangs": 1}
    gone = (False, "failed", "infrastructure")
    async with hosting(tmp_path, recording, engine) as host:
        running = asyncio.create_task(host.run(specs(*lines)))
        await until(lambda: sum(end[1] for found in ends(tmp_path).values() for end in found) == 3)
        assert ends(tmp_path) == {
            "good": [(0, True, "finished", None)],
            "unlucky": [(0, *gone), (1, *gone), (2, True, "finished", None)],
            "hopeless": [(0, *gone), (1, *gone), (2, True, "failed", "infrastructure")],
        }
        assert engine.asked == {"hangs": 1, "good": 1, "unlucky": 4, "hopeless": 3}
        assert sorted(waits) == [1, 1, 2, 2]
        assert [agent["agent_id"] for agent in await host.agents()] == ["hangs/0"]
        engine.hangs.clear()
        await running
        assert ends(tmp_path)["hangs"] == [(0, True, "finished", None)]
        status = await host.status()
        assert status["endings"] == {"finished": 3, "infrastructure": 1}


async def test_attempts_before_a_resume_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr("concur_batch.agent.host.retry_wait_seconds", lambda failed: waits.append(failed) or 0.0)
    recording = Recording(tmp_path)
    async with hosting(tmp_path, recording, Engine({"a": [GONE]})) as host:
        await host.run([replace(spec, attempt=1, attempts_before=1) for spec in specs("a")])
    assert [(end[0], end[1]) for end in ends(tmp_path)["a"]] == [(1, False), (2, True)]
    assert waits == [2]


async def test_a_run_that_is_stopped_waits_for_no_other_attempt_and_makes_no_failure_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concur_batch.agent.host.retry_wait_seconds", lambda failed: 3600.0)
    recording, engine = Recording(tmp_path), Engine({"waits": [GONE], "fails": [GONE]})
    engine.hangs = {"fails": 1}
    async with hosting(tmp_path, recording, engine) as host:
        running = asyncio.create_task(host.run(specs("waits", "fails")))
        await until(lambda: ends(tmp_path) and engine.asked["fails"])
        await host.drain()
        engine.hangs.clear()  # it fails while the run is being stopped
        async with asyncio.timeout(30):
            await running
    assert ends(tmp_path) == {"waits": [(0, False, "failed", "infrastructure")]}
    left = going_on(specs("waits", "fails"), read_past(Run(tmp_path)), 3)
    assert [(agent.task_id, agent.attempt, agent.attempts_before) for agent in left] == [
        ("waits", 1, 1),
        ("fails", 0, 0),
    ]


async def test_a_host_that_dies_after_the_write_and_before_the_answer_has_nothing_delivered_twice(
    tmp_path: Path,
) -> None:
    lines = {"ended": [WORK, SUBMIT], "under-way": [WORK, WORK, SUBMIT]}
    agents = specs(*lines)
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    for directory in (undisturbed, disturbed):
        directory.mkdir()
    recording = Recording(undisturbed)
    async with hosting(undisturbed, recording, Engine(lines)) as host:
        await host.run(agents)
    await recording.recorder.close()

    recording, engine = Recording(disturbed), Engine(lines)
    engine.hangs = {"ended": 2, "under-way": 2}
    recording.deaf = "agents"
    async with hosting(disturbed, recording, engine) as host:
        running = asyncio.create_task(host.run(agents))
        await until(lambda: engine.asked.total() == 4 and Run(disturbed).table("turns").num_rows == 2)
        del engine.hangs["ended"]
        await until(lambda: ends(disturbed))
        assert not running.done()
        assert [agent["agent_id"] for agent in await host.agents()] == ["under-way/0"]
        await recording.recorder.fence("host0")  # as the driver does once it is dead
    recording.deaf = None
    left = going_on(agents, read_past(Run(disturbed)), 3)
    assert [(agent.agent_id, agent.attempt, agent.goes_on) for agent in left] == [("under-way/0", 0, True)]
    async with hosting(disturbed, recording, Engine({"under-way": lines["under-way"][1:]}), "host1") as host:
        await host.run(left)
    await recording.recorder.close()

    for table in ("agents", "turns", "tools"):
        assert rows_of(disturbed, table) == rows_of(undisturbed, table)
    sums = [account_of(Run(directory), agents, [])["sums"] for directory in (undisturbed, disturbed)]
    assert [sums[0][name] for name in ("turns", "tool_calls", "output_tokens")] == [
        sums[1][name] for name in ("turns", "tool_calls", "output_tokens")
    ]


def rows_of(directory: Path, table: str) -> list[dict[str, Any]]:
    """All rows, without what differs from run to run."""
    rows = [{**untimed(row), "host": None} for row in Run(directory).table(table).to_pylist()]
    return sorted(rows, key=str)
