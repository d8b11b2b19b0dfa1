"""Random schedules of a batch: hosts and admission over a channel that loses nothing and keeps no order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from concur_batch.control.admission import Admission
from concur_batch.control.member import Beat, Event, Membership, Permit, State, Traits
from concur_batch.control.queue import Queue
from concur_batch.control.rules import Rules

WAITING = (State.PENDING, State.PAUSED, State.QUEUED)
POOL_TOKENS = 1000
LONG_TOKENS = 200

RULES = st.builds(
    Rules,
    per_generation=st.booleans(),
    victim_order=st.sampled_from(["newest", "oldest", "largest", "smallest", "longest_idle"]),
    resume_order=st.sampled_from(["oldest", "newest", "smallest", "largest"]),
    resume_age_seconds=st.none() | st.just(8.0),
    max_consecutive_pauses=st.none() | st.integers(1, 2),
    move_evicted_share=st.sampled_from([0.0, 0.5, 1.0]),
    longest_pause_seconds=st.none() | st.just(12.0),
    longest_tool_wait_seconds=st.none() | st.just(6.0),
    long_request_tokens=st.none() | st.just(LONG_TOKENS),
    growth_turns=st.none() | st.integers(1, 3),
    shares=st.just({"x": 2.0}),
)
TRAITS = st.builds(
    Traits, priority=st.integers(0, 1), group=st.sampled_from(["", "x"]), deadline_seconds=st.none() | st.floats(1, 99)
)


@dataclass(slots=True)
class Agent:
    """An agent as its host knows it, by the rules of the host's gate."""

    host: int
    traits: Traits
    context_tokens: int
    state: State = State.PENDING
    epoch: int = 0
    allowed: bool = False
    admitted: bool = False
    pool: str | None = None

    def census(self, name: str, per_generation: bool) -> Membership:
        holds = self.allowed or self.state is State.ACTIVE or (self.state is State.TOOL_WAIT and not per_generation)
        return Membership(
            name, self.state, self.epoch, self.admitted, holds, self.pool, self.context_tokens, self.traits
        )


class Batch(RuleBasedStateMachine):
    """Every event and every decision happens twice, on two admissions: they must never differ."""

    @initialize(rules=RULES, pools=st.integers(1, 3), capacity=st.none() | st.integers(0, 4))
    def open(self, rules: Rules, pools: int, capacity: int | None) -> None:
        self.rules, self.pools = rules, "pqr"[:pools]
        self.now_seconds = 0.0
        self.agents: dict[str, Agent] = {}
        self.known: set[str] = set()  # heard of by the admission, and not known to have ended
        self.events: dict[int, list[Event]] = {0: [], 1: []}  # by host, in order
        self.permits: list[Permit] = []  # under way, in no order
        self.born = 0
        self.settled = False
        self.begin(capacity)

    def begin(self, capacity: int | None) -> None:
        self.twins = [Admission(self.rules, self.pools) for _ in range(2)]
        for twin in self.twins:
            for window in twin.windows.values():
                window.pool_tokens = POOL_TOKENS
        self.resize(dict.fromkeys(self.pools, capacity))

    @property
    def admission(self) -> Admission:
        return self.twins[0]

    def decide(self, method: str, *arguments: Any) -> None:
        first, second = (getattr(twin, method)(*arguments, self.now_seconds) for twin in self.twins)
        assert first == second
        self.permits += first
        self.settled = True

    def resize(self, capacities: dict[str, int | None]) -> None:
        self.decide("resize", capacities)

    def some(self, data: st.DataObject, *states: State) -> tuple[str, Agent] | None:
        agents = [(name, agent) for name, agent in self.agents.items() if agent.state in states]
        return data.draw(st.sampled_from(agents)) if agents else None

    # Hosts.

    @rule(data=st.data(), traits=TRAITS, count=st.integers(1, 3))
    def arrivals(self, data: st.DataObject, traits: Traits, count: int) -> None:
        for _ in range(count):
            name, host = f"a{self.born}", data.draw(st.sampled_from(sorted(self.events)))
            self.born += 1
            self.agents[name] = Agent(host, traits, data.draw(st.integers(1, 2 * LONG_TOKENS)))
            self.report("arrive", name)

    def report(self, kind: Any, name: str) -> None:
        agent = self.agents[name]
        self.events[agent.host].append(Event(kind, name, agent.epoch, agent.context_tokens, agent.traits))

    @rule(data=st.data(), grown_tokens=st.integers(0, LONG_TOKENS))
    def generation_ends(self, data: st.DataObject, grown_tokens: int) -> None:
        if (found := self.some(data, State.ACTIVE)) is not None:
            self.end_generation(*found, grown_tokens)

    def end_generation(self, name: str, agent: Agent, grown_tokens: int) -> None:
        agent.state = State.TOOL_WAIT
        agent.context_tokens += grown_tokens
        if self.rules.per_generation:
            agent.allowed = False
            self.report("yield", name)

    @rule(data=st.data())
    def generation_fails(self, data: st.DataObject) -> None:
        if (found := self.some(data, State.ACTIVE)) is not None:
            name, agent = found
            agent.allowed, agent.state = False, State.PAUSED
            self.report("down", name)

    @rule(data=st.data(), large=st.booleans())
    def tool_ends(self, data: st.DataObject, large: bool) -> None:
        if (found := self.some(data, State.TOOL_WAIT)) is not None:
            self.end_tool(*found, large)

    def end_tool(self, name: str, agent: Agent, large: bool) -> None:
        if self.rules.per_generation:
            self.report("arrive", name)
            agent.state = State.ACTIVE if agent.allowed else State.QUEUED
        elif not agent.allowed:
            self.report("boundary", name)
            agent.state = State.PAUSED
        elif large and self.rules.long_request_tokens is not None:
            agent.allowed, agent.state = False, State.PAUSED
            self.report("large", name)
        else:
            agent.state = State.ACTIVE

    @rule(data=st.data())
    def agent_ends(self, data: st.DataObject) -> None:
        if (found := self.some(data, *State)) is not None:
            self.end(found[0])

    def end(self, name: str) -> None:
        self.report("release", name)
        del self.agents[name]

    # The channel.

    @rule(data=st.data(), count=st.integers(1, 4))
    def permits_arrive(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.permits))):
            self.apply(self.permits.pop(data.draw(st.integers(0, len(self.permits) - 1))))

    def apply(self, permit: Permit) -> None:
        agent = self.agents.get(permit.agent)
        if agent is None or permit.epoch <= agent.epoch:
            return
        agent.epoch, agent.allowed = permit.epoch, permit.allowed
        if permit.allowed:
            agent.pool = permit.pool
        if agent.state not in WAITING:
            return
        if permit.allowed:
            agent.state, agent.admitted = State.ACTIVE, True
        else:
            agent.state = State.PAUSED
            self.report("boundary", permit.agent)

    @rule(data=st.data(), count=st.integers(1, 4))
    def events_arrive(self, data: st.DataObject, count: int) -> None:
        self.hear(data.draw(st.sampled_from(sorted(self.events))), count)

    def hear(self, host: int, count: int) -> None:
        heard, self.events[host] = self.events[host][:count], self.events[host][count:]
        for event in heard:
            if event.kind == "arrive":
                self.known.add(event.agent)
            elif event.kind == "release":
                self.known.discard(event.agent)
            settled = self.settled
            ignored = event.kind != "arrive" and self.admission.member(event.agent) is None
            self.decide("take", event)
            self.settled = settled if ignored else True

    @rule(data=st.data())
    def beats_arrive(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(sorted(self.events)))
        beats = [
            Beat(name, agent.state, agent.context_tokens)
            for name, agent in self.agents.items()
            if agent.host == host and agent.state in (State.ACTIVE, State.TOOL_WAIT)
        ]
        for twin in self.twins:
            twin.beat(beats, self.now_seconds)
        self.settled = False

    @rule(data=st.data())
    def host_is_lost(self, data: st.DataObject) -> None:
        host = data.draw(st.sampled_from(sorted(self.events)))
        gone = [name for name, agent in self.agents.items() if agent.host == host]
        unheard = [event.agent for event in self.events.pop(host) if event.kind == "release"]
        self.events[max(self.events, default=0) + host + 1] = []
        self.agents = {name: agent for name, agent in self.agents.items() if agent.host != host}
        self.known -= {*gone, *unheard}
        self.decide("release", gone + unheard)

    # The controller.

    @rule(data=st.data(), seconds=st.sampled_from([0.5, 3.0, 7.0]))
    def period_ends(self, data: st.DataObject, seconds: float) -> None:
        self.now_seconds += seconds
        capacity = st.none() if self.admission.windows["p"].capacity is None else st.integers(0, 6)
        self.resize({pool: data.draw(capacity) for pool in self.pools})

    @rule(pool=st.sampled_from("pqr"), tokens=st.sampled_from([400, 500, 1000]))
    def pool_evicts(self, pool: str, tokens: int) -> None:
        for twin in self.twins:
            if pool in twin.windows:
                twin.windows[pool].evicted_tokens += tokens

    @rule(pool=st.sampled_from("pqr"), what=st.sampled_from(["suspect", "close", "reopen", "reopen"]))
    def pool_changes(self, pool: str, what: str) -> None:
        if pool not in self.pools:
            return
        if what == "suspect":
            for twin in self.twins:
                twin.suspect(pool)
        else:
            self.decide(what, pool)

    @rule(suspended=st.booleans())
    def operator(self, suspended: bool) -> None:
        self.decide("suspend", suspended)

    @rule(data=st.data(), capacity=st.integers(0, 4))
    def controller_restarts(self, data: st.DataObject, capacity: int) -> None:
        """What it had sent arrives before the hosts tell their census, or never. What it had not heard is in there, and
        some hosts tell it again afterwards."""
        sent, self.permits = self.permits, []
        for permit in sent:
            if data.draw(st.booleans()):
                self.apply(permit)
        self.events = {host: events if data.draw(st.booleans()) else [] for host, events in self.events.items()}
        self.known = set(self.agents)
        bounded = self.admission.windows["p"].capacity is not None
        census = {
            host: [
                agent.census(name, self.rules.per_generation)
                for name, agent in self.agents.items()
                if agent.host == host
            ]
            for host in self.events
        }
        self.twins = [Admission(self.rules, self.pools) for _ in range(2)]
        for twin in self.twins:
            for window in twin.windows.values():
                window.pool_tokens = POOL_TOKENS
        for members in census.values():
            self.decide("restore", members)
        assert not self.permits  # others may hold places that it has not heard of
        self.resize(dict.fromkeys(self.pools, capacity if bounded else None))

    # What must hold.

    def queues(self) -> list[Queue]:
        admission = self.admission
        return [*(window.paused for window in admission.windows.values()), admission._displaced, admission._pending]

    @invariant()
    def every_agent_is_in_one_place(self) -> None:
        places: Counter[str] = Counter()
        for window in self.admission.windows.values():
            places.update([*window.holders, *window.adrift])
            assert set(window.marked) <= set(window.holders)
            for agent in [*window.holders, *window.adrift]:
                member = self.admission.member(agent)
                assert member is not None
                assert (member.pool, member.state in WAITING) == (window.name, False)
        for queue in self.queues():
            for agent in queue:
                places[agent] += 1
                member = self.admission.member(agent)
                assert member is not None
                assert member.state in WAITING
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
        for window in self.admission.windows.values():
            if window.open:
                assert not window.paused
                assert not self.admission.waiting_elsewhere

    @invariant()
    def whoever_waits_does_not_generate(self) -> None:
        for name, member in self.admission.members():
            if member.state in WAITING and name in self.agents:
                assert self.agents[name].state in WAITING
        for name, agent in self.agents.items():
            if agent.state is State.ACTIVE:
                window = self.admission.windows[agent.pool or ""]
                assert name in window.holders or name in window.adrift

    def teardown(self) -> None:
        """Everything opens, tools end, and everyone finishes: nobody is lost."""
        if not hasattr(self, "twins"):
            return
        self.decide("suspend", False)
        self.resize(dict.fromkeys(self.pools, 1))
        for _ in range(6 * self.born + 6):
            for pool in self.pools:
                self.decide("reopen", pool)
            for host in self.events:
                self.hear(host, len(self.events[host]))
            while self.permits:
                self.apply(self.permits.pop())
            for name, agent in list(self.agents.items()):
                if agent.state is State.ACTIVE:
                    self.end(name)
                elif agent.state is State.TOOL_WAIT:
                    self.end_tool(name, agent, large=False)
            for host in self.events:
                self.hear(host, len(self.events[host]))
        assert not self.agents
        self.every_agent_is_in_one_place()
        self.the_accounts_agree_with_a_recount()
        assert (self.admission.places_held, self.admission.waiting) == (0, 0)


TestBatch = Batch.TestCase
TestBatch.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
