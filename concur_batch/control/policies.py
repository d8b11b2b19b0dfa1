"""The policies: how many places the window has, and for how long a place is held. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from concur_batch.control.law import Branch, Law
from concur_batch.engine.signals import Sample
from concur_batch.workload.schema import AgentCap, Concur, NoControl, RequestCap


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a control period decided: the capacity before and after (None: unbounded), the branch and its reason."""

    before: int | None
    after: int | None
    branch: Branch
    reason: str


class Policy(Protocol):
    """Gives a window its capacity: at the start, and then once a period."""

    @property
    def per_generation(self) -> bool:
        """Whether a place lasts for one generation only."""
        ...

    def start(self, places_held: int) -> int | None:
        """The first capacity; `places_held` is above zero where a controller takes over a running batch."""
        ...

    def step(self, capacity: int | None, sample: Sample) -> Verdict:
        """The capacity for the next period."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """`none`, `request_cap` and `agent_cap`: a capacity that never changes."""

    capacity: int | None
    per_generation: bool
    reason: str

    def start(self, places_held: int) -> int | None:
        return self.capacity

    def step(self, capacity: int | None, sample: Sample) -> Verdict:
        return Verdict(capacity, capacity, Branch.FIXED, self.reason)


@dataclass(frozen=True, slots=True)
class Aimd:
    """`concur`: the law on the period's U and H, within [min_window, max_window]."""

    law: Law
    initial_window: int
    min_window: int
    max_window: int
    per_generation: bool = False

    def start(self, places_held: int) -> int | None:
        return self._clamp(places_held or self.initial_window)

    def step(self, capacity: int | None, sample: Sample) -> Verdict:
        if capacity is None:
            raise ValueError("the law needs a bounded window")
        if sample.stale:
            return Verdict(capacity, capacity, Branch.HOLD, f"stale sample: {sample.note}")
        if sample.usage is None:
            return Verdict(capacity, capacity, Branch.HOLD, "the engine tells no KV usage")
        proposed, branch = self.law.step(capacity, sample.usage, sample.hit_rate)
        after = self._clamp(proposed)
        hit = "undefined" if sample.hit_rate is None else f"{sample.hit_rate:.2f}"
        reason = f"U {sample.usage:.2f}, H {hit}"
        if after != proposed:
            reason += f"; {proposed} held at the bound {after}"
        return Verdict(capacity, after, branch, reason)

    def _clamp(self, window: int) -> int:
        return max(self.min_window, min(self.max_window, window))


def make_policy(control: NoControl | RequestCap | AgentCap | Concur, agents: int) -> Policy:
    """The policy that a workload's `control` block names, for a batch of `agents` agents."""
    match control:
        case NoControl():
            return Fixed(None, False, "no control")
        case RequestCap():
            return Fixed(control.cap, True, f"at most {control.cap} requests in flight")
        case AgentCap():
            return Fixed(control.cap, False, f"at most {control.cap} agents")
        case Concur():
            law = Law(control.alpha, control.beta, control.u_low, control.u_high, control.h_thresh)
            most = max(control.min_window, control.max_window or agents)
            return Aimd(law, control.initial_window, control.min_window, most)
