"""Random schedules of a batch: real gates, a channel that keeps no order, and what must hold in the admission."""

from __future__ import annotations

import asyncio
from collections import Counter

from gate_agents import Agent, Step
from gate_machine import GateMachine
from hypothesis import settings
from hypothesis.stateful import invariant

from concur_batch.agent.gate import Draining, Gate
from concur_batch.control.admission import Admission
from concur_batch.control.member import NO_TRAITS, Event, Member, Membership, Permit, State
from concur_batch.control.queue import Queue
from concur_batch.control.rules import Rules
from concur_batch.control.window import Window

WAITING = (State.PENDING, State.PAUSED, State.QUEUED)


class Machine(GateMachine):
    def queues(self) -> list[Queue]:
        admission = self.admission
        return [*(window.paused for window in admission.windows.values()), admission._displaced, admission._pending]

    def member(self, agent: str) -> Member:
        member = self.admission.member(agent)
        assert member is not None, agent
        return member

    def runs_in(self, agent: str) -> list[Window]:
        return [window for window in self.admission.windows.values() if agent in {**window.holders, **window.adrift}]

    @invariant()
    def every_agent_is_in_one_place(self) -> None:
        places: Counter[str] = Counter()
        for window in self.admission.windows.values():
            places.update([*window.holders, *window.adrift])
            assert set(window.marked) <= set(window.holders)
            for agent in [*window.holders, *window.adrift]:
                member = self.member(agent)
                assert (member.pool, member.state in WAITING) == (window.name, False)
        for queue in self.queues():
            places.update(queue)
            assert all(self.member(agent).state in WAITING for agent in queue)
        for agent, member in self.admission.members():
            between = self.rules.per_generation and member.state is State.TOOL_WAIT
            assert places[agent] == 1 or (between and not places[agent])
        assert {agent for agent, _ in self.admission.members()} == self.known
        assert set(places) <= self.known

    @invariant()
    def the_accounts_agree_with_a_recount(self) -> None:
        groups: Counter[str] = Counter()
        for window in self.admission.windows.values():
            groups.update(member.traits.group for member in window.holders.values())
            assert window.history_tokens == sum(member.context_tokens for member in window.holders.values())
        assert +self.admission._held == groups
        assert self.admission.places_held == groups.total()
        assert self.admission.waiting == sum(map(len, self.queues()))

    @invariant()
    def unmarked_places_fit_the_window(self) -> None:
        if self.rules.per_generation or not self.settled:
            return
        for window in self.admission.windows.values():
            forced = sum(member.forced for agent, member in window.holders.items() if agent not in window.marked)
            if window.capacity is not None:
                assert len(window.holders) - len(window.marked) <= window.capacity + forced

    @invariant()
    def nobody_waits_beside_a_free_place(self) -> None:
        rules = self.rules
        waits_for_room = rules.growth_turns is not None or rules.long_request_tokens is not None
        if not self.settled or self.admission.suspended or waits_for_room:
            return
        free = [window for window in self.admission.windows.values() if window.open]
        assert not any(window.paused for window in free)
        for queue in (self.admission._displaced, self.admission._pending):
            if (found := queue.next(self.now_seconds)) is not None:
                assert not [window for window in free if self.takes(window, found[1])]

    def takes(self, window: Window, agent: str) -> bool:
        """Whether the pool is large enough for the agent, or none is."""
        member = self.member(agent)
        return window.holds(member) or not any(other.holds(member) for other in self.admission.windows.values())

    @invariant()
    def whoever_waits_does_not_generate(self) -> None:
        for agent in self.agents.values():
            if agent.host in self.unknown:
                continue
            member = self.admission.member(agent.name)
            if member is not None and member.state in WAITING:
                assert agent.doing == "waits"
            if agent.doing == "generates":
                assert self.admission.windows[agent.pool] in self.runs_in(agent.name)

    def deliver_all(self) -> None:
        self.turn_loop()
        while self.permits or any(self.events.values()) or self.unknown:
            for host, events in self.events.items():
                if events or host in self.unknown:
                    self.hear(host, len(events))
            permits, self.permits = self.permits, []
            self.apply(permits)
            self.turn_loop()
        for host in self.events:
            self.hear_beats(host)

    def quiescence(self) -> None:
        """Once all is delivered, gates and admission agree on everyone."""
        self.deliver_all()
        assert {name for name, _ in self.admission.members()} == set(self.agents)
        for agent in self.agents.values():
            member = self.member(agent.name)
            assert (agent.doing == "waits") == (member.state in WAITING)
            between = self.rules.per_generation and agent.doing == "tool"
            assert bool(self.runs_in(agent.name)) == (agent.doing != "waits" and not between)
            if agent.doing in ("generates", "tool"):
                assert member.context_tokens == agent.context_tokens or between

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.everyone_ends()
        finally:
            for agent in self.agents.values():
                agent.task.cancel()
            self.turn_loop()
            self.loop.close()

    def everyone_ends(self) -> None:
        """Everything opens, and everyone comes to an end of its own."""
        self.quiescence()
        self.decide("suspend", False)
        self.decide("resize", dict.fromkeys(self.sizes, 1))
        for _ in range(4 * len(self.host_of) + 4):
            for pool in self.sizes:  # one may just have been found down
                self.decide("reopen", pool)
            self.deliver_all()
            for agent in self.agents.values():
                if agent.doing != "waits":
                    agent.steps.put_nowait(Step("tool" if agent.doing == "parks" else "end"))
            self.turn_loop()
        self.deliver_all()
        assert not self.agents
        self.every_agent_is_in_one_place()
        self.the_accounts_agree_with_a_recount()
        assert (self.admission.places_held, self.admission.waiting, list(self.admission.members())) == (0, 0, [])


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=400, stateful_step_count=60, deadline=None)


def test_what_is_older_than_a_census_costs_nobody_a_place_and_gives_none() -> None:
    """The hosts' queued events come after the census that a restarted controller asked for."""
    admission = Admission(Rules(per_generation=True), ["p"])
    queued = Membership("queued", State.QUEUED, 1, admitted=True, holds_place=False, pool="p")
    in_tool = Membership("tool", State.TOOL_WAIT, 1, admitted=True, holds_place=False, pool="p")
    assert admission.restore([queued, in_tool], 0.0) == []
    assert admission.resize({"p": 1}, 0.0) == [Permit("queued", 2, True, "p")]
    for late in (Event("arrive", "tool", 0), Event("yield", "queued", 1), Event("arrive", "queued", 1)):
        assert admission.take(late, 0.0) == []
    assert (list(admission.windows["p"].holders), admission.waiting) == (["queued"], 0)
    assert admission.take(Event("arrive", "tool", 1), 0.0) == []
    assert admission.take(Event("yield", "queued", 2), 0.0) == [Permit("tool", 2, True, "p")]


async def test_a_drain_lets_nobody_pass_and_every_place_is_given_back() -> None:
    events: list[Event] = []
    gate, admission = Gate(events.append, Rules()), Admission(Rules(), ["p"], granting=True)
    admission.resize({"p": 2}, 0.0)
    agents = [Agent(f"a{number}", "h", gate, NO_TRAITS, 10) for number in range(4)]

    async def deliver() -> None:
        while events:
            gate.apply(admission.take(events.pop(0), 0.0))
        await asyncio.sleep(0)

    await asyncio.sleep(0)
    await deliver()
    await asyncio.sleep(0)
    assert [agent.doing for agent in agents] == ["generates", "generates", "waits", "waits"]
    gate.drain()
    for agent in agents[:2]:
        agent.steps.put_nowait(Step("generated"))
        agent.steps.put_nowait(Step("tool"))
    ends = await asyncio.gather(*(agent.task for agent in agents), return_exceptions=True)
    assert [type(end) for end in ends] == [Draining] * 4
    await deliver()
    assert (admission.places_held, admission.waiting, admission.counts()[State.FINISHED]) == (0, 0, 4)
