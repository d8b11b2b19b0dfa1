"""One attempt over pools that go down or are too small, against budgets and deadlines, or cancelled by the operator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rollout_desk import SPEC, SUBMIT, TOKENIZER, WORK, Desk, Lines, SayingEngine, make, play

from concur_batch.agent.rollout import Rollout
from concur_batch.agent.services import Pool, Services
from concur_batch.agent.spec import AgentSpec, Ending
from concur_batch.control.member import State, Traits
from concur_batch.engine.protocol import ContextOverflow, EngineDown, Generation, GenerationRequest, PoolOverflow
from tools_env.spec import ToolResult

Outcome = tuple[Ending, dict[str, Any]]


class Clock:
    """Seconds since the run's start, as a test moves them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class TimedEngine(SayingEngine):
    """Takes two seconds for a generation, or for finding out that it is down."""

    def __init__(self, clock: Clock, *lines: Any) -> None:
        super().__init__(*lines)
        self.clock = clock

    async def generate(self, request: GenerationRequest) -> Generation:
        self.clock.seconds += 2
        return await super().generate(request)


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("concur_batch.agent.rollout.random.uniform", lambda low, high: 0.0)


def started(services: Services, spec: AgentSpec = SPEC) -> tuple[Rollout, asyncio.Task[Outcome]]:
    rollout = Rollout(spec, services)
    return rollout, asyncio.create_task(rollout.run())


# Pools that go down.


async def test_a_pool_that_goes_down_parks_the_agent_which_goes_on_where_the_next_permit_says() -> None:
    clock, desk, rows = Clock(), Desk(pools=("0", "1")), Lines()
    gone = TimedEngine(clock, WORK, EngineDown("refused"))
    well = TimedEngine(clock, WORK, SUBMIT)
    services = replace(
        make(gone, desk, rows), clock=clock, pools={"0": Pool(gone, None, 1, 8000), "1": Pool(well, 3, 16, 9000)}
    )
    ending, row = await started(services)[1]
    turns = rows.rows("turns")
    assert (ending.status, row["turns"], row["replica"]) == ("finished", 3, "1")
    assert [turn["replica"] for turn in turns] == ["0", "1", "1"]
    assert [(len(gone.requests), gone.requests[1].dp_rank), (len(well.requests), well.requests[0].dp_rank)] == [
        (2, None),
        (2, 3),
    ]
    # The same prompt again, under the same number; its delta is recorded once.
    assert gone.requests[1].input_ids.tolist() == well.requests[0].input_ids.tolist()
    assert gone.requests[1].rid == well.requests[0].rid == turns[1]["rid"]
    recorded = "".join(turn["input_delta_ids"] + turn["output_ids"] for turn in turns)
    assert np.frombuffer(bytes.fromhex(recorded), "<i4").tolist() == [
        *well.requests[1].input_ids.tolist(),
        *TOKENIZER.encode(SUBMIT + "<|im_end|>"),
    ]
    assert [turn["generation_seconds"] for turn in turns] == [2, 2, 2]
    assert desk.admission.windows["0"].closed
    assert desk.is_free()


async def test_the_time_that_an_agent_is_parked_does_not_count_against_it() -> None:
    clock, desk, rows = Clock(), Desk(), Lines()
    engine = TimedEngine(clock, WORK, EngineDown("refused"), SUBMIT)
    services = replace(make(engine, desk, rows, active_seconds=60), clock=clock)
    rollout, running = started(services)
    await desk.until(State.PAUSED)
    assert (desk.admission.places_held, len(engine.requests)) == (0, 2)
    clock.seconds += 1000
    await asyncio.sleep(0.02)
    assert (len(engine.requests), rollout.standing()["state"]) == (2, "paused")
    desk.reopen("0")
    ending, row = await running
    assert (ending.status, row["turns"], row["pauses"]) == ("finished", 2, 1)
    assert (row["generation_seconds"], row["paused_seconds"] > 0) == (4, True)
    assert desk.is_free()


async def test_pools_that_go_down_over_and_over_under_one_generation_fail_the_infrastructure() -> None:
    desk, rows, engine = Desk(), Lines(), SayingEngine(WORK, EngineDown("refused"))
    report = desk.report

    def believe(event: Any) -> None:
        report(event)
        asyncio.get_running_loop().call_soon(desk.reopen, "0")

    desk.gate._report = believe
    ending, row = await started(make(engine, desk, rows))[1]
    assert (ending.status, ending.failure_class) == ("failed", "infrastructure")
    assert "8 times" in (ending.error or "")
    assert (row["turns"], len(engine.requests), desk.admission.windows["0"].moves.paused) == (1, 1 + 8, 7)
    assert desk.is_free()


# Agents that are too large.


async def test_a_prompt_that_the_engine_says_does_not_fit_its_pool_ends_oversized() -> None:
    ending, row, *_ = await play(WORK, PoolOverflow("KV memory budget"))
    assert (ending.status, ending.reason, ending.failure_class, row["turns"]) == ("oversized", "pool", "limit", 1)


async def test_a_context_that_the_engine_says_is_full_is_a_limit_and_not_the_pools() -> None:
    ending, *_ = await play(ContextOverflow("too long"))
    assert (ending.status, ending.reason) == ("limit", "context")


def with_pool(tokens: int) -> Callable[[Services], Services]:
    return lambda services: replace(
        services, pools={name: replace(pool, tokens=tokens) for name, pool in services.pools.items()}
    )


async def test_a_history_that_fills_the_largest_pool_ends_oversized_without_asking_the_engine() -> None:
    _, _, _, engine = await play(SUBMIT)
    prompt_tokens = len(engine.requests[0].input_ids)
    desk, rows, engine = Desk(), Lines(), SayingEngine(WORK)
    ending, row = await started(with_pool(prompt_tokens)(make(engine, desk, rows)))[1]
    assert (ending.status, row["turns"], engine.requests) == ("oversized", 0, [])
    assert desk.state() is None  # it asked for no place either


async def test_an_output_that_the_pool_cuts_ends_oversized() -> None:
    _, _, _, engine = await play(SUBMIT)
    prompt_tokens = len(engine.requests[0].input_ids)
    ending, row, rows, engine = await play((WORK, "length"), adjust=with_pool(prompt_tokens + 9))
    assert (ending.status, ending.reason, row["turns"]) == ("oversized", "pool", 1)
    assert engine.requests[0].max_new_tokens == 9
    assert rows.rows("tools") == []


async def test_a_pool_of_unknown_size_bounds_nothing() -> None:
    ending, _, _, engine = await play(
        SUBMIT, adjust=lambda services: replace(services, pools={"0": Pool(services.pools["0"].engine, None, 1, None)})
    )
    assert (ending.status, engine.requests[0].max_new_tokens) == ("finished", 200)


async def test_an_agent_that_outgrows_its_budget_of_kv_ends_at_a_limit() -> None:
    _, _, _, engine = await play(WORK, WORK, SUBMIT)
    second = len(engine.requests[1].input_ids)
    for budget, turns in ((second, 2), (second - 1, 1)):
        adjust = lambda services, budget=budget: replace(services, kv_budget_tokens=budget)  # noqa: E731
        ending, row, *_ = await play(WORK, WORK, SUBMIT, adjust=adjust)
        assert (ending.status, ending.reason, row["turns"]) == ("limit", "kv_budget", turns)


# Deadlines. The clock stands so near that they come while the agent waits, or a test moves it past them.


def late(own: float | None) -> AgentSpec:
    return replace(SPEC, traits=Traits(deadline_seconds=own))


@pytest.mark.parametrize(("own", "common"), [(100.0, None), (None, 100.0), (100.0, 500.0), (500.0, 100.0)])
async def test_a_deadline_ends_an_agent_that_still_waits_for_its_first_place(
    own: float | None, common: float | None
) -> None:
    clock, desk, rows = Clock(), Desk(capacity=0), Lines()
    clock.seconds = 99.98
    services = replace(make(SayingEngine(WORK), desk, rows), clock=clock, deadline_seconds=common)
    ending, row = await started(services, late(own))[1]
    assert (ending.status, ending.reason, row["turns"], row["admitted_seconds"]) == ("limit", "deadline", 0, None)
    assert desk.is_free()


async def test_a_deadline_ends_a_paused_agent() -> None:
    clock, desk, rows = Clock(), Desk(), Lines()
    engine = SayingEngine(WORK)
    generate = engine.generate

    async def pausing(request: GenerationRequest) -> Generation:
        desk.resize(0)
        clock.seconds = 99.98
        return await generate(request)

    engine.generate = pausing  # type: ignore[method-assign]
    ending, row = await started(replace(make(engine, desk, rows), clock=clock), late(100.0))[1]
    assert (ending.status, ending.reason, row["turns"]) == ("limit", "deadline", 1)
    assert desk.admission.windows["0"].moves.paused == 1
    assert desk.is_free()


async def test_a_deadline_ends_an_agent_that_is_parked() -> None:
    clock, desk, rows = Clock(), Desk(), Lines()
    clock.seconds = 99.97
    engine = SayingEngine(EngineDown("refused"))
    ending, row = await started(replace(make(engine, desk, rows), clock=clock), late(100.0))[1]
    assert (ending.status, ending.reason, row["turns"], len(engine.requests)) == ("limit", "deadline", 0, 1)
    assert desk.is_free()


async def test_a_deadline_that_has_passed_ends_an_agent_at_its_boundary() -> None:
    clock, desk, rows = Clock(), Desk(), Lines()
    services = replace(make(TimedEngine(clock, WORK), desk, rows), clock=clock)
    ending, row = await started(services, late(5.0))[1]
    assert (ending.status, ending.reason, row["turns"]) == ("limit", "deadline", 3)
    assert desk.is_free()


# The operator.


class Hanging:
    """Reaches a point and stays there; counts how often it was torn away."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.aborts = 0

    async def __call__(self, *_: Any) -> Any:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.aborts += 1
            raise


async def cancelled(services: Services, desk: Desk, reached: Awaitable[Any]) -> Outcome:
    rollout = Rollout(SPEC, services)
    running: asyncio.Task[Any] = asyncio.create_task(rollout.run())
    await reached
    assert rollout.cancel(running)
    assert not rollout.cancel(running)  # it is on its way already
    ending, row = await running
    assert not rollout.cancel(running)
    assert (ending.status, ending.reason, ending.failure_class) == ("cancelled", "cancelled", "cancelled")
    assert "reward" not in row
    assert desk.is_free()
    return ending, row


async def test_an_agent_is_cancelled_while_it_waits() -> None:
    desk, rows = Desk(capacity=0), Lines()
    _, row = await cancelled(make(SayingEngine(WORK), desk, rows), desk, desk.until(State.PENDING))
    assert (row["turns"], list(rows)) == (0, [])


async def test_an_agent_is_cancelled_while_it_generates_and_the_engine_sees_it() -> None:
    desk, rows, engine, hanging = Desk(), Lines(), SayingEngine(WORK), Hanging()
    engine.generate = hanging  # type: ignore[method-assign]
    _, row = await cancelled(make(engine, desk, rows), desk, hanging.reached.wait())
    assert (row["turns"], hanging.aborts) == (0, 1)


async def test_an_agent_is_cancelled_in_a_tool_whose_turn_is_not_recorded() -> None:
    desk, rows, hanging = Desk(), Lines(), Hanging()
    services = make(SayingEngine(WORK), desk, rows)
    closed: list[bool] = []

    class Session:
        workspace = None

        async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
            return await hanging()  # type: ignore[no-any-return]

        async def close(self, keep: bool = False) -> None:
            closed.append(keep)

    class Tools:
        async def open(self, key: str, files: Any) -> Session:
            return Session()

    _, row = await cancelled(replace(services, tools=Tools()), desk, hanging.reached.wait())  # type: ignore[arg-type]
    assert (row["turns"], rows.rows("turns"), hanging.aborts, closed) == (0, [], 1, [False])
