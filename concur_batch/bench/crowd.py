"""Thousands of agents through the control core in one process, each call timed. Pure: the clock is handed in.

all arrive ── take ──► Governor ── permits ──► the window's agents do one turn a round, and ask where they must
                          ▲                                   │
                          └── beats and a period, each round ─┘
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from concur_batch.control.governor import Governor
from concur_batch.control.member import NO_TRAITS, Beat, Event, Permit, State, Traits
from concur_batch.engine.protocol import Reading
from concur_batch.workload.schema import Concur

Clock = Callable[[], float]

# Every so many rounds the engine looks congested and the window is cut in half; in the others it grows again.
_ROUNDS_PER_CUT = 10
_POOL_TOKENS = 1_000_000
_NEW_TOKENS = 1000  # of a prompt, a turn


@dataclass(frozen=True, slots=True)
class Order:
    """A way to choose who is next: fields of the `control` block, and the traits of the agent of each number."""

    name: str
    control: Mapping[str, Any] = field(default_factory=dict)
    traits: Callable[[int], Traits] = lambda number: NO_TRAITS


ORDERS = (
    Order("oldest first, as published"),
    Order(
        "3 priorities, 8 groups, smallest first",
        {"resume_order": "smallest", "victim_order": "largest", "extensions": {"shares": {"group0": 2.0}}},
        lambda number: Traits(priority=number % 3, group=f"group{number % 8}"),
    ),
    Order("nearest deadline first", {}, lambda number: Traits(deadline_seconds=float(number * 7919 % 10_007))),
)


@dataclass(slots=True)
class Account:
    """What a batch asked of the core. `decisions` are permits, refusals included, `most_active` the places held at
    most at a round's end; `take_seconds` has a value for each event, `period_seconds` for each control period."""

    turns: int = 0
    decisions: int = 0
    most_active: int = 0
    events: Counter[str] = field(default_factory=Counter)
    take_seconds: list[float] = field(default_factory=list)
    period_seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Agent:
    number: int
    turns: int = 0
    epoch: int = 0
    allowed: bool = False

    @property
    def context_tokens(self) -> int:
        return (self.turns + 1) * (_NEW_TOKENS + self.number % 97)


def drive(agents: int, turns: int, window: int, order: Order, clock: Clock) -> Account:
    """So many agents, all there from the start, through a window of at most `window` places, to their ends."""
    return _Crowd(agents, turns, window, order, clock).run()


class _Crowd:
    def __init__(self, agents: int, turns: int, window: int, order: Order, clock: Clock) -> None:
        growth = {"alpha": max(1, window // 5), "initial_window": window, "max_window": window}
        self._governor = Governor(Concur.model_validate({"policy": "concur", **growth, **order.control}), ["0"], agents)
        self._turns = turns
        self._order = order
        self._clock = clock
        self._waiting = {f"agent{number:06d}": _Agent(number) for number in range(agents)}
        self._active: dict[str, _Agent] = {}
        self._account = Account()
        self._now_seconds = 0.0
        self._hit_tokens = 0

    def run(self) -> Account:
        self._apply(self._governor.begin(0.0))
        for name, agent in list(self._waiting.items()):
            self._take(Event("arrive", name, 0, agent.context_tokens, self._order.traits(agent.number)))
        while self._waiting or self._active:
            self._round()
        return self._account

    def _round(self) -> None:
        """A turn of everybody with a place, and a control period."""
        self._now_seconds += 1.0
        for name, agent in list(self._active.items()):
            agent.turns += 1
            self._account.turns += 1
            if agent.turns == self._turns:
                del self._active[name]
                self._take(Event("release", name))
            elif not agent.allowed:
                self._waiting[name] = self._active.pop(name)
                self._take(Event("boundary", name, agent.epoch, agent.context_tokens))
        beats = [Beat(name, State.TOOL_WAIT, agent.context_tokens) for name, agent in self._active.items()]
        self._governor.admission.beat(beats, self._now_seconds)
        reading = self._reading()
        began = self._clock()
        permits, _ = self._governor.period({"0": [reading]}, self._now_seconds)
        self._account.period_seconds.append(self._clock() - began)
        self._apply(permits)
        self._account.most_active = max(self._account.most_active, self._governor.admission.places_held)

    def _take(self, event: Event) -> None:
        self._account.events[event.kind] += 1
        began = self._clock()
        permits = self._governor.admission.take(event, self._now_seconds)
        self._account.take_seconds.append(self._clock() - began)
        self._apply(permits)

    def _apply(self, permits: Iterable[Permit]) -> None:
        for permit in permits:
            self._account.decisions += 1
            agent = self._active.get(permit.agent) or self._waiting[permit.agent]
            agent.epoch, agent.allowed = permit.epoch, permit.allowed
            if permit.allowed and self._waiting.pop(permit.agent, None) is not None:
                self._active[permit.agent] = agent

    def _reading(self) -> Reading:
        congested = self._now_seconds % _ROUNDS_PER_CUT == 0
        self._hit_tokens += 0 if congested else _NEW_TOKENS
        return Reading(
            at_seconds=self._now_seconds,
            stamp_seconds=self._now_seconds,
            pool_tokens=_POOL_TOKENS,
            locked_tokens=int((0.9 if congested else 0.1) * _POOL_TOKENS),
            evictable_tokens=0,
            input_tokens_total=int(self._now_seconds) * _NEW_TOKENS,
            device_hit_tokens_total=self._hit_tokens,
        )
