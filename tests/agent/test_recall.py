"""An attempt that is cut off after any of its turns and goes on elsewhere: nothing of it shows in what it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rollout_desk import SPEC, SUBMIT, TOKENIZER, WORK, Desk, Lines, Outcome, SayingEngine, configured, make
from test_conversation import Chatting

from concur_batch.agent.recall import recorded_turns
from concur_batch.agent.rollout import Rollout
from concur_batch.agent.services import Services
from concur_batch.agent.spec import AgentSpec, CommandCheck, Ending
from concur_batch.agent.trajectory import Exchange, Step, Trajectory
from concur_batch.engine.pools import PoolAddress
from concur_batch.engine.protocol import GenerationRequest
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from tests.engine.chat_server import Said, calls, says
from tools_env.sandbox import SandboxEnvironment
from tools_env.spec import ToolResult
from tools_env.workspace import Workspace

BAD = "<tool_call>\n{nonsense\n</tool_call>"
PAIR = f"{WORK}\n{WORK.replace('1', '2')}"
# What differs from run to run, and what belongs to the place where it ran.
_TIMES = ("started_seconds", "generation_started_seconds", "ended_seconds", "generation_seconds", "tool_seconds",
          "pending_seconds", "queue_seconds", "tool_queue_seconds", "seconds",
          "admitted_seconds", "verify_seconds", "ended_at", "tools_mark")  # fmt: skip


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _TIMES}


async def whole(services: Services, spec: AgentSpec) -> Outcome:
    return await Rollout(spec, services).run()


async def cut_off_after(turns: int, services: Services, spec: AgentSpec) -> None:
    """Play so many turns and no more, as a killed process would."""
    records = services.records
    assert isinstance(records, Lines)
    task = asyncio.create_task(Rollout(spec, services).run())
    while len(records) < turns:
        assert not task.done()
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del records[turns:]


def on_disk(directory: Path, records: Lines) -> Run:
    """A run whose recorder was killed when it had these rows."""
    (directory / "journal").mkdir(parents=True, exist_ok=True)
    (directory / "journal" / "recorder0-000000.jsonl").write_bytes(b"".join(records))
    write_manifest(directory, {})
    return Run(directory)


async def assert_nothing_shows(
    tmp_path: Path, choose: Callable[[int], int], make_services: Callable[[Lines], Services], spec: AgentSpec
) -> Outcome:
    """Cut off after so many turns of all, as is chosen, and gone on, it leaves the rows that it leaves undisturbed."""
    undisturbed, before, after = Lines(), Lines(), Lines()
    expected, expected_row = await whole(make_services(undisturbed), spec)
    turns = choose(len(undisturbed))
    await cut_off_after(turns, make_services(before), spec)
    recorded = recorded_turns(on_disk(tmp_path, before), [spec])[spec.agent_id]
    ending, row = await Rollout(spec, make_services(after), recorded).run()
    assert ending == expected
    assert untimed(row) == untimed(expected_row)
    together = Lines([*before, *after])
    for table in ("turns", "tools"):
        assert [untimed(row) for row in together.rows(table)] == [untimed(row) for row in undisturbed.rows(table)]
    return ending, row


class Scripted(SayingEngine):
    """Says its lines by how many turns the history holds, as a model would: nothing is told by the process."""

    async def generate(self, request: GenerationRequest) -> Any:
        text = TOKENIZER.decode(request.input_ids.tolist(), skip_special=False)
        turn = text.count("<|im_start|>assistant") - 1
        one = SayingEngine(self.lines[min(turn, len(self.lines) - 1)])
        self.requests.append(request)
        return await one.generate(request)


class Messenger(Chatting):
    """The same with messages."""

    def __init__(self, said: Sequence[Said], sent: list[Any]) -> None:
        super().__init__(*said)
        self.sent = sent

    async def generate(self, request: GenerationRequest) -> Any:
        assert request.chat is not None
        self.sent.append(request.chat.messages)
        turn = sum(message["role"] == "assistant" for message in request.chat.messages)
        return await Chatting(*self.said[turn:]).generate(request)


LINES = st.lists(st.sampled_from([WORK, PAIR, BAD, WORK.replace("work", "nothing")]), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.sampled_from([SUBMIT, "The answer is 42.", (WORK, "length")]), st.data())
def test_an_agent_goes_on_behind_any_of_its_turns(
    tmp_path: Path, lines: list[str], end: Any, data: st.DataObject
) -> None:
    script = [*lines, end]
    limits = {"malformed": data.draw(st.integers(1, 3)), "turns": data.draw(st.integers(1, 8))}
    asyncio.run(
        assert_nothing_shows(
            tmp_path,
            lambda turns: data.draw(st.integers(1, turns)),
            lambda rows: make(Scripted(*script), Desk(), rows, **limits),
            SPEC,
        )
    )


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_replayed_agent_goes_on_at_its_next_step(tmp_path: Path, turns: int) -> None:
    new = [np.arange(5, 9, dtype=np.int32) + number for number in range(3)]
    exchange = Exchange("work", {"step": 1}, ToolResult("ok", "seen", 0.001))
    steps = tuple(Step(ids, 3, (exchange,) if number < 2 else ()) for number, ids in enumerate(new))
    spec = replace(SPEC, check=None, trajectory=Trajectory(steps, Ending("finished", "answer")))

    class Forced(SayingEngine):
        async def generate(self, request: GenerationRequest) -> Any:
            made = await super().generate(request)
            return replace(made, output_ids=[int(request.input_ids.sum()) % 50 + 5] * 3, finish_reason="length")

    await assert_nothing_shows(tmp_path, lambda _: turns, lambda rows: make(Forced("x"), Desk(), rows), spec)


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
async def test_a_conversation_goes_on_with_the_messages_that_the_server_gave(tmp_path: Path, turns: int) -> None:
    said = [
        calls(("work", {"step": 1}), content="I look."),
        says("No call at all</tool_call>\n<tool_call>{"),
        calls(("work", {"step": 2}), ("work", '{"step": 3}')),
        calls(("submit", {"answer": "42"})),
    ]
    sent: list[list[Any]] = []

    def services(rows: Lines) -> Services:
        sent.append([])
        address = PoolAddress("0", "http://a", None, None, 1, 8000, "openai", "m")
        return configured(make(Messenger(said, sent[-1]), Desk(), rows), pools=(address,))

    await assert_nothing_shows(tmp_path, lambda _: turns, services, SPEC)
    undisturbed, before, after = sent
    assert [*before[:turns], *after] == undisturbed
    assert len(undisturbed) == 4


async def test_the_workspace_is_that_of_the_last_turn_and_its_check_sees_no_more(tmp_path: Path) -> None:
    def bash(command: str) -> str:
        return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'

    script = [bash("echo 1 >>log; cat log"), bash("echo 2 >>log; cat log"), bash("cat log"), SUBMIT]
    check = CommandCheck("test $(wc -l <log) = 2 && echo reward: 0.5", {}, 20)
    spec = replace(SPEC, check=check, files={"log": ""})
    made: list[SandboxEnvironment] = []

    def services(rows: Lines) -> Services:
        made.append(SandboxEnvironment(tmp_path / ("other" if not made else "root"), ["bash", "submit"]))
        base = make(Scripted(*script), Desk(), rows)
        return replace(base, tools=made[-1], specs=made[-1].specs())

    for cut in (1, 2, 4):
        made.clear()
        _, row = await assert_nothing_shows(tmp_path / str(cut), partial(min, cut), services, spec)
        assert row["reward"] == 0.5
        for environment in made:
            await environment.close()
            await environment.forget(SPEC.agent_id)


async def test_a_workspace_that_cannot_be_had_fails_the_attempt_as_infrastructure(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path / "root", ["bash", "submit"])
    before = Lines()

    def services(rows: Lines) -> Services:
        text = '<tool_call>\n{"name": "bash", "arguments": {"command": "echo x >f"}}\n</tool_call>'
        return replace(make(Scripted(text, SUBMIT), Desk(), rows), tools=environment, specs=environment.specs())

    await cut_off_after(1, services(before), SPEC)
    await environment.forget(SPEC.agent_id)
    recorded = recorded_turns(on_disk(tmp_path, before), [SPEC])[SPEC.agent_id]
    ending, _ = await Rollout(SPEC, services(Lines()), recorded).run()
    assert (ending.status, ending.failure_class) == ("failed", "infrastructure")
    assert "gone" in str(ending.error)
    await environment.close()


async def test_a_disk_without_room_for_a_workspace_holds_the_turn_up_and_costs_nothing(tmp_path: Path) -> None:
    rows = Lines()

    class Full:
        """A session whose state cannot be saved twice."""

        workspace = None
        tries = 0

        def specs(self) -> list[Any]:
            return []

        async def open(self, key: str, files: Any, mark: str | None = None) -> Full:
            return self

        async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
            return ToolResult("ok", "", answer=arguments.get("answer"))

        async def save(self, recorded: str) -> str:
            self.tries += 1
            if self.tries <= 2:
                assert rows.rows("turns") == []
                raise OSError(28, "No space left on device")
            return "1"

        async def close(self, keep: bool = False) -> None: ...

    services = replace(make(SayingEngine(SUBMIT), Desk(), rows), tools=Full())  # type: ignore[arg-type]
    task = asyncio.create_task(Rollout(SPEC, services).run())
    while not services.troubles:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert services.troubles == {"t/0#0": "the workspace of t/0 cannot be saved: No space left on device"}
    ending, _ = await task
    assert (ending.reason, services.troubles) == ("submit", {})
    assert [row["tools_mark"] for row in rows.rows("turns")] == ["1"]


async def test_a_disk_without_room_for_a_check_holds_the_end_up_and_costs_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = SandboxEnvironment(tmp_path / "root", ["submit"])
    services = replace(make(Scripted(SUBMIT), Desk(), Lines()), tools=environment, specs=environment.specs())
    tries = []

    def force(workspace: Workspace, path: str, data: bytes) -> None:
        tries.append(path)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")
        workspace.write(path, data)

    monkeypatch.setattr(Workspace, "force", force)
    spec = replace(SPEC, check=CommandCheck("test -s expected", {"expected": "1\n"}, 20))
    running = asyncio.create_task(Rollout(spec, services).run())
    while not services.troubles:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert services.troubles == {"t/0#0": "the check of t/0 cannot be run: No space left on device"}
    ending, row = await running
    assert (ending.status, row["reward"], tries, services.troubles) == ("finished", 1.0, ["expected"] * 2, {})
    await environment.close()
