"""Real gates and the admission as one machine, over a channel that delays, batches and reorders.

Each host has a gate with real coroutines at it. Its events reach the admission in order and late; the permits come back
late and in no order; the controller restarts and asks the hosts, one after the other, what their agents do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from concur_batch.agent.gate import Draining, Gate, Wish
from concur_batch.control.admission import Admission
from concur_batch.control.member import NO_TRAITS, Event, Membership, Permit, State
from concur_batch.control.rules import Rules

HOSTS = ("h", "i")
WAITING = (State.PENDING, State.PAUSED, State.QUEUED)
LONG_TOKENS = 100
Step = Literal["generated", "down", "tool", "large", "end", "raise"]

RULES = st.builds(
    Rules,
    per_generation=st.sampled_from([False, False, True]),
    victim_order=st.sampled_from(["newest", "oldest"]),
    longest_pause_seconds=st.none() | st.just(9.0),
    longest_tool_wait_seconds=st.none() | st.just(5.0),
    long_request_tokens=st.none() | st.just(LONG_TOKENS),
)


class Agent:
    """What a rollout does at the gate, step by step as the machine says."""

    def __init__(self, name: str, host: str, gate: Gate) -> None:
        self.name, self.host, self.gate = name, host, gate
        self.doing: Literal["waits", "generates", "tool", "parks", "ended"] = "waits"
        self.pool = ""
        self.steps: asyncio.Queue[Step] = asyncio.Queue()
        self.context_tokens = 10
        self.task = asyncio.create_task(self.live())
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is told to raise

    async def live(self) -> None:
        new_tokens = 10
        try:
            while True:
                self.doing = "waits"
                leave = await self.gate.enter(self.name, Wish(self.context_tokens, new_tokens), NO_TRAITS)
                self.doing, self.pool, new_tokens = "generates", leave.pool, 10
                step = await self.steps.get()
                if step == "generated":
                    self.context_tokens += 10
                    self.gate.generated(self.name, self.context_tokens)
                    self.doing = "tool"
                    step = await self.steps.get()
                    new_tokens = 2 * LONG_TOKENS if step == "large" else 10
                elif step == "down":
                    self.gate.found_down(self.name)
                    self.doing = "parks"
                    step = await self.steps.get()
                if step == "end":
                    return
                if step == "raise":
                    raise RuntimeError("whatever it was")
        finally:
            self.gate.leave(self.name)
            self.doing = "ended"


class Machine(RuleBasedStateMachine):
    @initialize(rules=RULES, pools=st.integers(1, 2), capacity=st.sampled_from([1, 2, None]))
    def begin(self, rules: Rules, pools: int, capacity: int | None) -> None:
        self.loop = asyncio.new_event_loop()
        self.rules, self.pools, self.capacity = rules, ("p", "q")[:pools], capacity
        self.now_seconds = 0.0
        self.events: dict[str, list[Event]] = {host: [] for host in HOSTS}
        self.permits: list[Permit] = []
        self.agents: dict[str, Agent] = {}
        self.born = 0
        self.gates = {
            host: Gate(
                self.events[host].append,
                per_generation=rules.per_generation,
                long_request_tokens=rules.long_request_tokens,
            )
            for host in HOSTS
        }
        self.admission = Admission(rules, self.pools)
        self.unknown: set[str] = set()  # hosts that a restarted controller has not heard of
        self.decide("resize", dict.fromkeys(self.pools, capacity))

    def decide(self, method: str, *arguments: Any) -> None:
        self.permits += getattr(self.admission, method)(*arguments, self.now_seconds)

    def turn_loop(self) -> None:
        async def idle() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(idle())
        self.agents = {name: agent for name, agent in self.agents.items() if agent.doing != "ended"}

    # Agents.

    @rule(host=st.sampled_from(HOSTS), count=st.integers(1, 3))
    def arrive(self, host: str, count: int) -> None:
        async def start() -> None:
            for _ in range(count):
                name = f"a{self.born}"
                self.born += 1
                self.agents[name] = Agent(name, host, self.gates[host])

        self.loop.run_until_complete(start())
        self.turn_loop()

    def step(self, data: st.DataObject, doing: str, *steps: Step) -> None:
        agents = [agent for agent in self.agents.values() if agent.doing == doing]
        if agents:
            data.draw(st.sampled_from(agents)).steps.put_nowait(data.draw(st.sampled_from(steps)))
            self.turn_loop()

    @rule(data=st.data())
    def generation_ends(self, data: st.DataObject) -> None:
        self.step(data, "generates", "generated", "generated", "down", "down", "end", "raise")

    @rule(data=st.data())
    def tool_ends(self, data: st.DataObject) -> None:
        self.step(data, "tool", "tool", "tool", "large", "end")

    @rule(data=st.data())
    def parking_ends(self, data: st.DataObject) -> None:
        self.step(data, "parks", "tool", "tool", "raise")

    @rule(data=st.data())
    def cancelled(self, data: st.DataObject) -> None:
        if self.agents:
            data.draw(st.sampled_from(list(self.agents.values()))).task.cancel()
            self.turn_loop()

    # The channel.

    @precondition(lambda self: self.permits)
    @rule(data=st.data(), count=st.sampled_from([1, 2, 99]), wake=st.booleans())
    def permits_arrive(self, data: st.DataObject, count: int, wake: bool) -> None:
        """In one call or several; where nobody wakes between, the next rule finds agents that have not gone on yet."""
        taken = [
            self.permits.pop(-1 - data.draw(st.integers(0, len(self.permits) - 1)))  # most often the newest first
            for _ in range(min(count, len(self.permits)))
        ]
        self.apply(taken)
        if wake:
            self.turn_loop()

    def apply(self, permits: list[Permit]) -> None:
        for gate in self.gates.values():  # a host takes no notice of other hosts' agents
            gate.apply(permits)

    @rule(host=st.sampled_from(HOSTS), count=st.sampled_from([1, 2, 99]))
    def events_arrive(self, host: str, count: int) -> None:
        """What an unknown host reports is lost: the answer makes the host introduce itself."""
        events = self.events[host]
        heard, events[:] = events[:count], events[count:]
        if host in self.unknown:
            self.introduce(host)
            return
        for event in heard:
            self.decide("take", event)

    @rule(host=st.sampled_from(HOSTS))
    def beats_arrive(self, host: str) -> None:
        beats = self.gates[host].take_beats()
        if host in self.unknown:
            self.introduce(host)  # events that are queued come after the census, though it tells more than they
        else:
            self.admission.beat(beats, self.now_seconds)

    # The controller.

    @precondition(lambda self: not self.unknown)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 4.0]))
    def period_ends(self, data: st.DataObject, seconds: float) -> None:
        self.now_seconds += seconds
        capacity = st.none() if self.capacity is None else st.integers(0, 2)
        self.decide("resize", {pool: data.draw(capacity) for pool in self.pools})

    @rule(data=st.data(), what=st.sampled_from(["reopen", "close", "suspect", "suspend", "go on", "die", "quiet"]))
    def upset(self, data: st.DataObject, what: str) -> None:
        """What happens seldom. In one rule, so that more happens between."""
        pool = data.draw(st.sampled_from(self.pools))
        match what:
            case "suspect":
                self.admission.suspect(pool)
            case "close" | "reopen":
                self.decide(what, pool)
            case "suspend" | "go on":
                self.decide("suspend", what == "suspend")
            case "die" if not self.unknown:
                self.restart([permit for permit in self.permits if data.draw(st.booleans())])
            case "quiet":
                self.quiescence()

    def restart(self, arrive: list[Permit]) -> None:
        """What the controller has sent arrives before its successor asks for anything, or never."""
        self.permits = []
        self.apply(arrive)
        self.admission = Admission(self.rules, self.pools)
        self.unknown = set(HOSTS)

    def introduce(self, host: str) -> None:
        self.unknown.discard(host)
        self.decide("restore", self.gates[host].census())
        if not self.unknown:
            windows = self.admission.windows
            bounded = self.capacity is not None
            capacities = {
                name: (len(window.holders) or self.capacity) if bounded else None for name, window in windows.items()
            }
            self.decide("resize", capacities)

    # What must hold.

    def known(self) -> list[Agent]:
        return [agent for agent in self.agents.values() if agent.host not in self.unknown]

    @invariant()
    def whoever_generates_has_a_permit(self) -> None:
        for agent in self.known():
            if agent.doing == "generates":
                window = self.admission.windows[agent.pool]
                assert agent.name in window.holders or agent.name in window.adrift, agent.name

    @invariant()
    def nobody_is_doubled(self) -> None:
        places: Counter[str] = Counter()
        queues = [self.admission._pending, self.admission._displaced]
        for window in self.admission.windows.values():
            places.update([*window.holders, *window.adrift])
            queues.append(window.paused)
            assert not [member for member in window.holders.values() if member.state in WAITING]
            assert window.history_tokens == sum(member.context_tokens for member in window.holders.values())
        for queue in queues:
            places.update(queue)
        assert not [agent for agent, count in places.items() if count > 1]

    def deliver_all(self) -> None:
        self.turn_loop()
        while self.permits or any(self.events.values()) or self.unknown:
            for host in HOSTS:
                if self.events[host] or host in self.unknown:
                    self.events_arrive(host, len(self.events[host]))
            permits, self.permits = self.permits, []
            self.apply(permits)
            self.turn_loop()
        for host in HOSTS:
            self.beats_arrive(host)

    def quiescence(self) -> None:
        """Once all is delivered, gates and admission agree on everyone, and nobody waits beside a free place."""
        self.deliver_all()
        admission = self.admission
        assert {name for name, _ in admission.members()} == set(self.agents)
        for agent in self.agents.values():
            member = admission.member(agent.name)
            assert member is not None
            assert (agent.doing == "waits") == (member.state in WAITING)
            between = self.rules.per_generation and agent.doing == "tool"
            holds = any(agent.name in {**w.holders, **w.adrift} for w in admission.windows.values())
            assert holds == (agent.doing != "waits" and not between)
            if agent.doing != "waits" or admission.suspended:
                continue
            at_home = member.admitted and member.pool is not None
            windows = [admission.windows[member.pool or ""]] if at_home else list(admission.windows.values())
            assert not any(window.open for window in windows), agent.name

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
        self.decide("resize", dict.fromkeys(self.pools, 1))
        for _ in range(4 * self.born + 4):
            for pool in self.pools:  # one may just have been found down
                self.decide("reopen", pool)
            self.deliver_all()
            for agent in self.agents.values():
                if agent.doing != "waits":
                    agent.steps.put_nowait("tool" if agent.doing == "parks" else "end")
            self.turn_loop()
        self.deliver_all()
        assert not self.agents
        assert (self.admission.places_held, self.admission.waiting, list(self.admission.members())) == (0, 0, [])


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


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=400, stateful_step_count=60, deadline=None)


async def test_a_drain_lets_nobody_pass_and_every_place_is_given_back() -> None:
    events: list[Event] = []
    gate, admission = Gate(events.append), Admission(Rules(), ["p"], granting=True)
    admission.resize({"p": 2}, 0.0)
    agents = [Agent(f"a{number}", "h", gate) for number in range(4)]

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
        agent.steps.put_nowait("generated")
        agent.steps.put_nowait("tool")
    ends = await asyncio.gather(*(agent.task for agent in agents), return_exceptions=True)
    assert [type(end) for end in ends] == [Draining] * 4
    await deliver()
    assert (admission.places_held, admission.waiting, admission.counts()[State.FINISHED]) == (0, 0, 4)
