"""One agent's attempt against an engine that says what a test wants: how each turn and each ending is handled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from rollout_desk import SPEC, SUBMIT, TOKENIZER, WORK, Desk, Lines, SayingEngine, make, play

from concur_batch.agent.gate import Draining
from concur_batch.agent.rollout import Rollout
from concur_batch.control.member import State
from concur_batch.engine.protocol import ContextOverflow, EngineError, Generation, GenerationRequest
from tools_env.sandbox import SandboxEnvironment
from tools_env.spec import ToolResult, ToolSpec
from tools_env.synthetic import SyntheticEnvironment


async def test_a_submit_finishes_and_is_judged() -> None:
    ending, row, rows, _ = await play(WORK, SUBMIT)
    assert (ending.status, ending.reason, row["answer"], row["reward"]) == ("finished", "submit", "42", 1.0)
    assert row["prompt"] == SPEC.prompt
    assert [turn["action"] for turn in rows.rows("turns")] == ["calls", "calls"]
    assert [call["name"] for call in rows.rows("tools")] == ["work", "submit"]


async def test_the_history_is_what_the_engine_saw_and_said_extended_by_the_template() -> None:
    _, _, rows, engine = await play(WORK, SUBMIT)
    first, second = engine.requests
    said = TOKENIZER.encode(WORK + "<|im_end|>")
    history = second.input_ids.tolist()
    assert history[: len(first.input_ids) + len(said)] == [*first.input_ids.tolist(), *said]
    text = TOKENIZER.decode(history, skip_special=False)
    assert text.endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert rows.rows("turns")[1]["context_tokens"] == len(history) + len(TOKENIZER.encode(SUBMIT + "<|im_end|>"))


async def test_parallel_calls_run_in_their_order_and_all_are_answered() -> None:
    _, row, rows, engine = await play(f"{WORK}\n{WORK.replace('1', '2')}", SUBMIT)
    assert [(call["turn"], call["call"]) for call in rows.rows("tools")] == [(0, 0), (0, 1), (1, 0)]
    assert TOKENIZER.decode(engine.requests[1].input_ids.tolist()).count("</tool_response>") == 2
    assert row["tool_calls"] == 3


async def test_a_malformed_action_gets_a_correction_and_a_good_one_starts_the_count_anew() -> None:
    bad = "<tool_call>\n{nonsense\n</tool_call>"
    ending, row, rows, _ = await play(bad, bad, WORK, bad, bad, SUBMIT, malformed=3)
    assert (ending.status, row["malformed_turns"]) == ("finished", 4)
    assert [turn["action"] for turn in rows.rows("turns")].count("malformed") == 4


async def test_too_many_malformed_actions_in_a_row_are_the_models_failure() -> None:
    ending, row, rows, _ = await play("<tool_call>\n{nonsense\n</tool_call>", malformed=3)
    assert (ending.status, ending.reason, ending.failure_class) == ("failed", "malformed", "model")
    assert row["turns"] == 3
    assert rows.rows("tools") == []


async def test_a_truncated_action_is_never_executed() -> None:
    for cut in (WORK[:-15], WORK):  # even one that seems complete: more might have followed
        for reason, limits in (
            ("length", {}),
            ("context", {"context_tokens": 430}),
            ("output_tokens", {"output_tokens": 9}),
        ):
            ending, _, rows, _ = await play((cut, "length"), **limits)
            assert (ending.status, ending.reason, ending.failure_class) == ("limit", reason, "limit")
            assert rows.rows("tools") == []


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"turns": 4}, "turns"),
        ({"output_tokens": 60}, "output_tokens"),
        ({"context_tokens": 420}, "context"),
        ({"active_seconds": 1e-9}, "active_seconds"),
        ({"wall_seconds": 1e-9}, "wall_seconds"),
    ],
)
async def test_every_limit_is_a_clean_end(limits: dict[str, Any], reason: str) -> None:
    ending, row, _, engine = await play(WORK, **limits)
    assert (ending.status, ending.reason, ending.failure_class) == ("limit", reason, "limit")
    assert row["turns"] == len(engine.requests)
    assert row["reward"] == 0.0  # judged all the same
    if reason == "turns":
        assert row["turns"] == 4
    if reason == "output_tokens":
        assert all(request.max_new_tokens <= 60 for request in engine.requests)


async def test_an_overflow_that_the_engine_reports_is_a_limit() -> None:
    ending, *_ = await play(WORK, ContextOverflow("too long"))
    assert (ending.status, ending.reason) == ("limit", "context")


async def test_an_engine_that_fails_is_infrastructure_and_gives_no_reward() -> None:
    ending, row, _, _ = await play(WORK, EngineError("gone"))
    assert (ending.status, ending.failure_class, ending.error) == ("failed", "infrastructure", "gone")
    assert "reward" not in row


class FailingTools:
    """Fails as told: at `open`, or as a sandbox that crashes, or as nobody foresaw."""

    workspace = None

    def __init__(self, how: str) -> None:
        self.how = how

    def specs(self) -> list[ToolSpec]:
        return SyntheticEnvironment((0, 0), (5, 5), 0).specs()

    async def open(self, key: str, files: Any, mark: str | None = None) -> FailingTools:
        if self.how == "open":
            raise RuntimeError("no room")
        return self

    async def save(self, recorded: str) -> str:
        return recorded

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if self.how == "bug":
            raise KeyError("surprise")
        return ToolResult("crashed", "the sandbox is gone")

    async def close(self, keep: bool = False) -> None:
        if self.how == "close":
            raise OSError("busy")


@pytest.mark.parametrize("how", ["open", "crash", "bug", "close"])
async def test_tools_that_fail_cost_this_agent_only_and_give_its_place_back(how: str) -> None:
    desk, rows = Desk(), Lines()
    services = replace(make(SayingEngine(WORK), desk, rows), tools=FailingTools(how))
    ending, _ = await Rollout(SPEC, services).run()
    assert (ending.status, ending.failure_class) == ("failed", "infrastructure")
    assert ending.error
    assert desk.is_free()


async def test_a_paused_agent_keeps_history_and_session_and_goes_on() -> None:
    desk, rows = Desk(), Lines()
    engine = SayingEngine(WORK, WORK, SUBMIT)
    services = make(engine, desk, rows)
    asked = asyncio.Event()
    generate = engine.generate

    async def pausing(request: GenerationRequest) -> Generation:
        if len(engine.requests) == 0:  # marked while it generates: that generation ends normally
            desk.resize(0)
            asked.set()
        return await generate(request)

    engine.generate = pausing  # type: ignore[method-assign]
    running = asyncio.create_task(Rollout(SPEC, services).run())
    await asked.wait()
    await desk.until(State.PAUSED)
    assert (desk.admission.places_held, len(engine.requests)) == (0, 1)
    await asyncio.sleep(0.02)
    assert len(engine.requests) == 1
    desk.resize(1)
    ending, row = await running
    assert (ending.status, row["turns"], row["pauses"]) == ("finished", 3, 1)
    assert row["paused_seconds"] >= 0.02
    assert (
        engine.requests[1].input_ids.tolist()[: len(engine.requests[0].input_ids)]
        == engine.requests[0].input_ids.tolist()
    )
    assert desk.admission.windows["0"].moves.admitted == 1


async def test_a_run_that_stops_ends_waiting_agents_without_a_row_and_frees_their_places() -> None:
    desk, rows = Desk(capacity=0), Lines()
    running = asyncio.create_task(Rollout(SPEC, make(SayingEngine(WORK), desk, rows)).run())
    await desk.until(State.PENDING)
    desk.gate.drain()
    with pytest.raises(Draining):
        await running
    assert running.done()
    assert list(rows) == []
    assert desk.is_free()


@pytest.mark.parametrize("where", ["generation", "tool"])
async def test_a_cancelled_agent_gives_its_place_back_wherever_it_was(where: str) -> None:
    desk, rows, reached = Desk(), Lines(), asyncio.Event()

    async def hang(*_: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    engine, tools = SayingEngine(WORK), FailingTools("hang")
    if where == "generation":
        engine.generate = hang  # type: ignore[method-assign]
    else:
        tools.call = hang  # type: ignore[method-assign]
    services = replace(make(engine, desk, rows), tools=tools)
    running = asyncio.create_task(Rollout(SPEC, services).run())
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert desk.is_free()


async def test_a_paused_agent_keeps_its_workspace(tmp_path: Path) -> None:
    def call(command: str) -> str:
        return (
            f"<tool_call>\n{orjson.dumps({'name': 'bash', 'arguments': {'command': command}}).decode()}\n</tool_call>"
        )

    desk, rows = Desk(), Lines()
    environment = SandboxEnvironment(tmp_path / "workspaces", ["bash", "submit"])
    engine = SayingEngine(call("echo kept > note.txt"), call("cat note.txt"), SUBMIT)
    services = replace(make(engine, desk, rows), tools=environment, specs=environment.specs())
    generate = engine.generate

    async def pausing(request: GenerationRequest) -> Generation:
        if len(engine.requests) == 0:
            desk.resize(0)
        return await generate(request)

    engine.generate = pausing  # type: ignore[method-assign]
    running = asyncio.create_task(Rollout(SPEC, services).run())
    await desk.until(State.PAUSED)
    desk.resize(1)
    ending, row = await running
    await environment.close()
    assert (ending.status, row["pauses"]) == ("finished", 1)
    assert [result["output"] for result in rows.rows("tools")][1] == "kept\n"
