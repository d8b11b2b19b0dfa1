"""The gate against permits that come late, twice, out of order or from a controller before."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from concur_batch.agent.claim import Pass, Wish
from concur_batch.agent.gate import Draining, Gate
from concur_batch.control.admission import Admission
from concur_batch.control.member import NO_TRAITS, Beat, Event, Membership, Permit, State, Traits
from concur_batch.control.rules import Rules

WISH = Wish(context_tokens=50, new_tokens=50)


def make(**rules: Any) -> tuple[Gate, list[Event]]:
    events: list[Event] = []
    return Gate(events.append, Rules(**rules)), events


async def entering(gate: Gate, agent: str, wish: Wish = WISH, traits: Traits = NO_TRAITS) -> asyncio.Task[Pass]:
    task = asyncio.create_task(gate.enter(agent, wish, traits))
    await asyncio.sleep(0)
    return task


async def entered(gate: Gate, agent: str, epoch: int = 1) -> None:
    """At its first generation in pool p."""
    waiting = await entering(gate, agent)
    gate.apply([Permit(agent, epoch, True, "p")])
    await waiting


async def test_an_agent_with_a_grant_tells_nobody() -> None:
    gate, events = make()
    traits = Traits(priority=3, group="g", deadline_seconds=9.0)
    waiting = await entering(gate, "a", traits=traits)
    gate.apply([Permit("a", 1, True, "p")])
    assert (await waiting).pool == "p"
    for tokens in (60, 70, 80):
        gate.generated("a", tokens)
        leave = await gate.enter("a", Wish(tokens + 5, 5), traits)
        assert (leave.pool, leave.paused) == ("p", False)
    assert events == [Event("arrive", "a", 0, 50, traits)]


async def test_an_agent_that_would_generate_twice_at_once_is_told_so() -> None:
    """peers.md section 3 row 3: parallel generations that count as one undercount the load. Here there are none: of
    three at once one goes on and two fail, before they can reach the engine; the one is counted."""
    admission = Admission(Rules(), ["p"], granting=True)
    gate, events = make()
    admission.resize({"p": 2}, 0.0)
    three = [asyncio.create_task(gate.enter("a", WISH, NO_TRAITS)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.apply([permit for event in events for permit in admission.take(event, 0.0)])
    results = await asyncio.gather(*three, return_exceptions=True)
    assert [type(result) for result in results] == [Pass, RuntimeError, RuntimeError]
    with pytest.raises(RuntimeError, match="a second generation"):
        await gate.enter("a", WISH, NO_TRAITS)
    assert (len(events), admission.places_held) == (1, 1)
    gate.generated("a", 60)
    assert (await gate.enter("a", WISH, NO_TRAITS)).pool == "p"  # its tools are done: the next turn


async def test_an_older_permit_is_void() -> None:
    gate, _ = make()
    waiting = await entering(gate, "a")
    gate.apply([Permit("a", 2, True, "q"), Permit("a", 1, False, "p"), Permit("a", 2, True, "p")])
    assert (await asyncio.wait_for(waiting, 1)).pool == "q"


async def test_a_mark_that_comes_while_the_agent_waits_is_reported_at_once() -> None:
    """Grant and mark may both arrive before the agent wakes, or the other way round; either way it must not be lost."""
    for order in (1, -1):
        gate, events = make()
        await entered(gate, "a")
        gate.apply([Permit("a", 2, False, "p")])
        gate.generated("a", 60)
        waiting = await entering(gate, "a", Wish(65, 5))
        assert events[-1] == Event("boundary", "a", 2, 65)
        gate.apply([Permit("a", 3, True, "p"), Permit("a", 4, False, "p")][::order])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
        assert events[-1] == Event("boundary", "a", 4, 65)
        gate.apply([Permit("a", 5, True, "q")])
        leave = await asyncio.wait_for(waiting, 1)
        assert (leave.pool, leave.paused, leave.pending_seconds) == ("q", True, 0.0)


async def test_an_agent_whose_pool_is_down_gives_its_place_back_and_waits_for_another() -> None:
    gate, events = make()
    await entered(gate, "a")
    gate.refuse("a", "down")
    waiting = await entering(gate, "a")
    assert events[-1] == Event("down", "a", 1, 50)
    assert gate.standing("a")[0] is State.PAUSED
    gate.apply([Permit("a", 2, True, "q")])
    assert (await asyncio.wait_for(waiting, 1)).pool == "q"
    gate.generated("a", 60)
    await gate.enter("a", WISH, NO_TRAITS)
    assert len(events) == 2  # it holds a place as before


async def test_leave_that_came_for_a_pool_since_it_was_found_down_is_not_used() -> None:
    """A mark was lifted meanwhile: the report gives that place back, so the agent must not go on in it."""
    gate, events = make()
    await entered(gate, "a")
    gate.apply([Permit("a", 2, False, "p")])
    gate.refuse("a", "down")
    gate.apply([Permit("a", 3, True, "p")])
    waiting = await entering(gate, "a")
    assert events[-1] == Event("down", "a", 3, 50)
    assert not waiting.done()
    waiting.cancel()


async def test_a_long_prompt_asks_again_and_a_short_one_does_not() -> None:
    gate, events = make(long_request_tokens=100)
    await entered(gate, "a")
    gate.generated("a", 60)
    await gate.enter("a", Wish(160, 100), NO_TRAITS)
    assert len(events) == 1
    gate.generated("a", 170)
    waiting = await entering(gate, "a", Wish(271, 101))
    assert events[1:] == [Event("large", "a", 1, 271)]
    gate.apply([Permit("a", 2, True, "p")])
    assert (await asyncio.wait_for(waiting, 1)).paused


async def test_beats_tell_what_place_holders_do_and_how_long_they_are() -> None:
    """Once for each change, the last one only, and only states that the admission takes."""
    gate, _ = make()
    admission = Admission(Rules(), ["p"], granting=True)
    admission.resize({"p": 4}, 0.0)
    for agent in ("a", "b", "gone"):
        waiting = await entering(gate, agent)
        gate.apply(admission.take(Event("arrive", agent, 0, 50), 0.0))
        await waiting
        gate.generated(agent, 60)
    gate.leave("gone")
    await gate.enter("a", Wish(66, 6), NO_TRAITS)
    gate.apply(admission.resize({"p": 1}, 0.0))
    paused = await entering(gate, "b")
    assert [beat._replace(waited_seconds=None) for beat in gate.take_beats()] == [Beat("a", State.ACTIVE, 66)]
    assert gate.take_beats() == []
    paused.cancel()


async def test_a_census_tells_who_holds_a_place_and_what_each_does() -> None:
    gate, _ = make()
    for agent in ("running", "tool", "marked"):
        await entered(gate, agent)
    gate.generated("tool", 60)
    gate.apply([Permit("marked", 2, False, "p")])
    waits = await entering(gate, "waits", traits=Traits(priority=2))
    paused = await entering(gate, "paused")
    gate.apply([Permit("paused", 1, True, "p"), Permit("paused", 2, False, "p")])
    woken = await entering(gate, "granted")
    gate.apply([Permit("granted", 1, True, "q")])  # and has not woken yet
    assert gate.census() == [
        Membership("running", State.ACTIVE, 1, True, True, "p", 50),
        Membership("tool", State.TOOL_WAIT, 1, True, True, "p", 60),
        Membership("marked", State.ACTIVE, 2, True, True, "p", 50),
        Membership("waits", State.PENDING, 0, False, False, None, 50, Traits(priority=2)),
        Membership("paused", State.PAUSED, 2, True, False, "p", 50),
        Membership("granted", State.ACTIVE, 1, True, True, "q", 50),
    ]
    for task in (waits, paused, woken):
        task.cancel()


async def test_under_a_request_cap_every_generation_asks() -> None:
    gate, events = make(per_generation=True)
    for epoch in (1, 2):
        waiting = await entering(gate, "a")
        gate.apply([Permit("a", epoch, True, "p")])
        assert (await waiting).paused_seconds == 0.0
        gate.generated("a", 60)
        assert [entry.holds_place for entry in gate.census()] == [False]
    assert [(event.kind, event.epoch) for event in events] == [
        ("arrive", 0),
        ("yield", 1),
        ("arrive", 1),
        ("yield", 2),
    ]


async def test_every_exit_releases_once_and_an_agent_unknown_leaves_without_a_word() -> None:
    gate, events = make()
    await entered(gate, "runs")
    waits = await entering(gate, "waits")
    waits.cancel()
    for agent in ("runs", "waits", "waits", "stranger"):
        gate.leave(agent)
    assert [event.agent for event in events if event.kind == "release"] == ["runs", "waits"]
    gate.apply([Permit("waits", 1, True, "p")])  # too late: nobody is there
    assert gate.census() == []


async def test_a_drain_ends_those_who_wait_and_those_who_would_pass() -> None:
    gate, _ = make()
    await entered(gate, "a")
    waiting = await entering(gate, "b")
    gate.drain()
    with pytest.raises(Draining):
        await waiting
    gate.generated("a", 60)
    with pytest.raises(Draining):
        await gate.enter("a", WISH, NO_TRAITS)
