"""One attempt against budgets and deadlines, or cancelled by the operator; and what is told of it while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest
from rollout_desk import (
    SPEC,
    SUBMIT,
    WORK,
    Clock,
    Desk,
    Hanging,
    HangingTools,
    Lines,
    Outcome,
    SayingEngine,
    TimedEngine,
    configured,
    make,
    play,
    started,
)

from concur_batch.agent.rollout import Rollout
from concur_batch.agent.services import Services
from concur_batch.agent.spec import AgentSpec
from concur_batch.control.member import State, Traits
from concur_batch.engine.protocol import EngineDown, Generation, GenerationRequest

pytestmark = pytest.mark.usefixtures("no_jitter")


# What is told of it while it runs.


async def test_the_seconds_of_a_generation_count_as_soon_as_it_has_ended() -> None:
    clock, desk, rows, hanging = Clock(), Desk(), Lines(), Hanging()
    engine = TimedEngine(clock, WORK)
    tools = HangingTools(hanging, calls=1)
    services = replace(make(engine, desk, rows), clock=clock, tools=tools)
    rollout, running = started(services)
    await hanging.reached.wait()
    # In the tool of its second turn: the first took 2 s, and so did the second's generation.
    assert (rollout.standing()["state"], rollout.standing()["turns"]) == ("tool_wait", 1)
    assert rollout.standing()["active_seconds"] == 2 + 2
    assert rollout.tally.active_seconds == 2
    running.cancel()


async def test_an_agent_that_outgrows_its_budget_of_kv_ends_at_a_limit() -> None:
    _, _, _, engine = await play(WORK, WORK, SUBMIT)
    second = len(engine.requests[1].input_ids)
    for budget, turns in ((second, 2), (second - 1, 1)):
        adjust = lambda services, budget=budget: configured(services, kv_budget_tokens=budget)  # noqa: E731
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
    services = configured(replace(make(SayingEngine(WORK), desk, rows), clock=clock), deadline_seconds=common)
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
    tools = HangingTools(hanging)
    _, row = await cancelled(replace(services, tools=tools), desk, hanging.reached.wait())
    assert (row["turns"], rows.rows("turns"), hanging.aborts, tools.closed) == (0, [], 1, [False])


# What requests carry for an engine that heeds it.


async def test_requests_carry_nothing_unless_it_is_asked_for() -> None:
    *_, engine = await play(WORK, SUBMIT)
    assert [(request.priority, request.session) for request in engine.requests] == [(None, None)] * 2
    assert engine.ended == []


async def test_requests_carry_the_tasks_priority_and_the_agents_session_which_is_closed_at_its_end() -> None:
    desk, engine = Desk(), SayingEngine(WORK, SUBMIT)
    services = configured(make(engine, desk, Lines()), priorities=True, sessions=True)
    spec = replace(SPEC, traits=Traits(priority=7), attempt=3)
    await Rollout(spec, services).run()
    session = engine.requests[0].rid[: -len("-00000")]
    assert session.endswith("-03")
    assert [(request.priority, request.session) for request in engine.requests] == [(7, session)] * 2
    assert engine.ended == [session]


async def test_a_cancelled_agents_session_is_closed_too() -> None:
    desk, hanging, engine = Desk(), Hanging(), SayingEngine(WORK)
    tools = HangingTools(hanging)
    services = configured(replace(make(engine, desk, Lines()), tools=tools), sessions=True)
    rollout, running = started(services)
    await hanging.reached.wait()
    assert engine.ended == []
    rollout.cancel(running)
    ending, _ = await running
    assert ending.status == "cancelled"
    assert engine.ended == [engine.requests[0].session]
