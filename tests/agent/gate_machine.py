"""Real gates and two admissions as one machine, over a channel that delays, batches and reorders.

Each host has a gate with real coroutines at it. Its events reach the admissions in order and late; the permits come
back late and in no order; the controller restarts and asks the hosts, one after the other, what their agents do. Every
event and every decision happens twice, on twin admissions, which must never differ.
"""

from __future__ import annotations

import asyncio
from typing import Any

from gate_agents import Agent, Step
from gate_settings import LONG_TOKENS, RULES, SIZES, TRAITS
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from concur_batch.agent.gate import Gate
from concur_batch.control.admission import Admission
from concur_batch.control.member import Event, Permit, Traits
from concur_batch.control.rules import Rules


class GateMachine(RuleBasedStateMachine):
    """`known`: the agents that the controller has heard of, and not of their end. `settled`: nothing has happened since
    the last decision."""

    @initialize(rules=RULES, pools=st.integers(1, 3), sizes=SIZES, capacity=st.sampled_from([1, 2, 4, None]))
    def begin(self, rules: Rules, pools: int, sizes: tuple[int | None, ...], capacity: int | None) -> None:
        self.loop = asyncio.new_event_loop()
        self.rules, self.sizes, self.capacity = rules, dict(zip("pqr"[:pools], sizes, strict=False)), capacity
        self.now_seconds = 0.0
        self.events: dict[str, list[Event]] = {}
        self.gates: dict[str, Gate] = {}
        self.permits: list[Permit] = []
        self.agents: dict[str, Agent] = {}
        self.host_of: dict[str, str] = {}  # of all that were ever born
        self.known: set[str] = set()
        self.hosts = 0
        for _ in range(2):
            self.new_host()
        self.new_controller()
        self.decide("resize", dict.fromkeys(self.sizes, capacity))

    def new_host(self) -> str:
        host = f"h{self.hosts}"
        self.hosts += 1
        self.events[host] = []
        self.gates[host] = Gate(self.events[host].append, self.rules)
        return host

    def new_controller(self) -> None:
        self.twins = [Admission(self.rules, self.sizes) for _ in range(2)]
        for twin in self.twins:
            for name, window in twin.windows.items():
                window.pool_tokens = self.sizes[name]
        self.unknown: set[str] = set()  # hosts that this controller has not heard of
        self.settled = False

    @property
    def admission(self) -> Admission:
        return self.twins[0]

    def decide(self, method: str, *arguments: Any) -> None:
        first, second = (getattr(twin, method)(*arguments, self.now_seconds) for twin in self.twins)
        assert first == second
        self.permits += first
        self.settled = self.admission.granting
        for pool in {permit.pool for permit in first if permit.allowed and self.rules.per_generation}:
            window = self.admission.windows[pool]
            forced = sum(member.forced for member in window.holders.values())
            assert window.capacity is None or len(window.holders) <= window.capacity + forced

    def turn_loop(self) -> None:
        async def idle() -> None:
            for _ in range(6):
                await asyncio.sleep(0)

        self.loop.run_until_complete(idle())
        self.agents = {name: agent for name, agent in self.agents.items() if agent.doing != "ended"}

    # Agents.

    @rule(data=st.data(), traits=TRAITS, count=st.integers(1, 3))
    def arrive(self, data: st.DataObject, traits: Traits, count: int) -> None:
        async def start() -> None:
            for _ in range(count):
                name, host = f"a{len(self.host_of)}", data.draw(st.sampled_from(sorted(self.gates)))
                self.host_of[name] = host
                tokens = data.draw(st.integers(1, 2 * LONG_TOKENS))
                self.agents[name] = Agent(name, host, self.gates[host], traits, tokens)

        self.loop.run_until_complete(start())
        self.turn_loop()

    def step(self, data: st.DataObject, doing: str, *steps: Step) -> None:
        agents = [agent for agent in self.agents.values() if agent.doing == doing]
        if agents:
            data.draw(st.sampled_from(agents)).steps.put_nowait(data.draw(st.sampled_from(steps)))
            self.turn_loop()

    @rule(data=st.data(), grown_tokens=st.integers(0, LONG_TOKENS))
    def generation_ends(self, data: st.DataObject, grown_tokens: int) -> None:
        generated = Step("generated", grown_tokens)
        self.step(data, "generates", generated, generated, Step("down"), Step("small"), Step("end"), Step("raise"))

    @rule(data=st.data())
    def tool_ends(self, data: st.DataObject) -> None:
        self.step(data, "tool", Step("tool"), Step("tool"), Step("tool", 2 * LONG_TOKENS), Step("small"), Step("end"))

    @rule(data=st.data())
    def parking_ends(self, data: st.DataObject) -> None:
        self.step(data, "parks", Step("tool"), Step("tool"), Step("raise"))

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

    @rule(data=st.data(), count=st.sampled_from([1, 2, 99]))
    def events_arrive(self, data: st.DataObject, count: int) -> None:
        self.hear(data.draw(st.sampled_from(sorted(self.gates))), count)

    def hear(self, host: str, count: int) -> None:
        """What an unknown host reports is lost: the answer makes the host introduce itself."""
        events = self.events[host]
        heard, events[:] = events[:count], events[count:]
        if host in self.unknown:
            self.introduce(host)
            return
        for event in heard:
            if event.kind == "arrive":
                self.known.add(event.agent)
            elif event.kind == "release":
                self.known.discard(event.agent)
            ignored = event.kind != "arrive" and self.admission.member(event.agent) is None
            settled = self.settled
            self.decide("take", event)
            self.settled = settled if ignored else self.settled

    @rule(data=st.data())
    def beats_arrive(self, data: st.DataObject) -> None:
        self.hear_beats(data.draw(st.sampled_from(sorted(self.gates))), lost=data.draw(st.sampled_from([False, True])))

    def hear_beats(self, host: str, *, lost: bool = False) -> None:
        beats = self.gates[host].take_beats()
        if lost:
            self.gates[host].return_beats(beats)
        elif host in self.unknown:
            self.introduce(host)  # events that are queued come after the census, though it tells more than they
        else:
            for twin in self.twins:
                twin.beat(beats, self.now_seconds)
            self.settled = False

    # The controller.

    @precondition(lambda self: not self.unknown)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 4.0]))
    def period_ends(self, data: st.DataObject, seconds: float) -> None:
        self.now_seconds += seconds
        capacity = st.none() if self.capacity is None else st.integers(0, 5)
        self.decide("resize", {pool: data.draw(capacity) for pool in self.sizes})

    @rule(data=st.data(), tokens=st.sampled_from([400, 500, 1000]))
    def pool_evicts(self, data: st.DataObject, tokens: int) -> None:
        pool = data.draw(st.sampled_from(sorted(self.sizes)))
        for twin in self.twins:
            twin.windows[pool].evicted_tokens += tokens

    @rule(
        data=st.data(), what=st.sampled_from(["reopen", "close", "suspect", "suspend", "go on", "die", "lose", "quiet"])
    )
    def upset(self, data: st.DataObject, what: str) -> None:
        """What happens seldom. In one rule, so that more happens between."""
        pool = data.draw(st.sampled_from(sorted(self.sizes)))
        match what:
            case "suspect":
                for twin in self.twins:
                    twin.suspect(pool, self.now_seconds)
            case "close" | "reopen":
                self.decide(what, pool)
            case "suspend" | "go on":
                self.decide("suspend", what == "suspend")
            case "die" if not self.unknown:
                self.restart([permit for permit in self.permits if data.draw(st.booleans())])
            case "lose":
                self.lose(data.draw(st.sampled_from(sorted(self.gates))))
            case "quiet":
                self.quiescence()

    def restart(self, arrive: list[Permit]) -> None:
        """What the controller has sent arrives before its successor asks for anything, or never."""
        self.permits = []
        self.apply(arrive)
        self.new_controller()
        self.unknown, self.known = set(self.gates), set()

    def introduce(self, host: str) -> None:
        self.unknown.discard(host)
        census = self.gates[host].census()
        self.known |= {entry.agent for entry in census}
        self.decide("restore", census)
        if not self.unknown:
            windows = self.admission.windows
            bounded = self.capacity is not None
            capacities = {
                name: (len(window.holders) or self.capacity) if bounded else None for name, window in windows.items()
            }
            self.decide("resize", capacities)

    def lose(self, host: str) -> None:
        """A host dies, with all its agents and what it had not sent, and another takes its place."""
        for agent in self.agents.values():
            if agent.host == host:
                agent.task.cancel()
        del self.gates[host]
        self.turn_loop()
        del self.events[host]
        gone = [name for name, owner in self.host_of.items() if owner == host]
        self.known -= set(gone)
        successor = self.new_host()
        if host in self.unknown:
            self.unknown = self.unknown - {host} | {successor}
        else:
            self.decide("release", gone)

    def quiescence(self) -> None:
        """Once all is delivered, what must hold then; the tests say what."""
