"""The gate against permits that come late, twice, out of order or from a controller before."""

from __future__ import annotations

import asyncio

from concur_batch.agent.gate import Event, Gate, Waits
from concur_batch.control.window import Permit, State, Window


def make(*, per_generation: bool = False) -> tuple[Gate, list[Event]]:
    events: list[Event] = []
    return Gate(events.append, per_generation=per_generation), events


async def entering(gate: Gate, agent: str) -> asyncio.Task[Waits]:
    task = asyncio.create_task(gate.enter(agent))
    await asyncio.sleep(0)
    return task


async def test_an_agent_with_a_grant_tells_nobody() -> None:
    gate, events = make()
    waiting = await entering(gate, "a")
    gate.apply([Permit("a", 1, True)])
    await waiting
    for _ in range(3):
        gate.generated("a")
        await gate.enter("a")
    assert events == [Event("arrive", "a")]


async def test_an_older_permit_is_void() -> None:
    gate, _ = make()
    waiting = await entering(gate, "a")
    gate.apply([Permit("a", 2, True), Permit("a", 1, False)])
    await asyncio.wait_for(waiting, 1)


async def test_a_mark_that_comes_while_the_agent_waits_is_reported_at_once() -> None:
    """Grant and mark may both arrive before the agent wakes, or the other way round; either way it must not be lost."""
    for permits in ([Permit("a", 3, True), Permit("a", 4, False)], [Permit("a", 4, False), Permit("a", 3, True)]):
        gate, events = make()
        waiting = await entering(gate, "a")
        gate.apply([Permit("a", 1, True)])
        await waiting
        gate.apply([Permit("a", 2, False)])
        gate.generated("a")
        waiting = await entering(gate, "a")
        assert events[-1] == Event("boundary", "a", 2)
        gate.apply(permits)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert events[-1] == Event("boundary", "a", 4)
        gate.apply([Permit("a", 5, True)])
        await asyncio.wait_for(waiting, 1)


async def test_only_states_that_the_window_takes_are_told() -> None:
    gate, _ = make()
    window = Window(4)
    for agent in ("a", "b"):
        waiting = await entering(gate, agent)
        gate.apply(window.arrive(agent))
        await waiting
        gate.generated(agent)
    gate.apply(window.resize(1))
    paused = await entering(gate, "b")
    for agent, state in gate.take_changes():
        window.observe(agent, State(state))
    assert window.state("a") is State.TOOL_WAIT
    paused.cancel()


async def test_a_census_tells_who_holds_a_place() -> None:
    gate, _ = make()
    for agent in ("running", "tool", "marked"):
        waiting = await entering(gate, agent)
        gate.apply([Permit(agent, 1, True)])
        await waiting
    gate.generated("tool")
    gate.apply([Permit("marked", 2, False)])
    granted, waits = await entering(gate, "granted"), await entering(gate, "waits")
    gate._entries["granted"].allowed = True  # granted, and has not woken yet
    held = {entry.agent: entry.holds_place for entry in gate.census()}
    assert held == {"running": True, "tool": True, "marked": True, "granted": True, "waits": False}
    for task in (granted, waits):
        task.cancel()


async def test_under_a_request_cap_every_generation_asks() -> None:
    gate, events = make(per_generation=True)
    for epoch in (1, 2):
        waiting = await entering(gate, "a")
        gate.apply([Permit("a", epoch, True)])
        await waiting
        gate.generated("a")
    assert [event.kind for event in events] == ["arrive", "yield", "arrive", "yield"]
