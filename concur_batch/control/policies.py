"""The policies: how many places a window has. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from concur_batch.control.growth import Growth
from concur_batch.control.law import Branch, Law
from concur_batch.control.load import Load
from concur_batch.control.policy import Policy, Verdict
from concur_batch.control.tokens import Tokens
from concur_batch.engine.signals import Sample
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, NoControl, RequestCap, TokenWindow


@dataclass(frozen=True, slots=True)
class Fixed:
    """`none`, `request_cap` and `agent_cap`: a capacity that never changes."""

    capacity: int | None
    reason: str

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        return Verdict(None, self.capacity, Branch.FIXED, self.reason)

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        # `self.capacity`, not the window's: `concur ctl` may have set another cap.
        return Verdict(capacity, self.capacity, Branch.FIXED, self.reason)

    def adopt(self, earlier: Policy) -> None:
        """It remembers nothing."""


@dataclass(slots=True)
class Aimd:
    """`concur` and `steady`: the law on the period's U and H, within [min_window, max_window]; `growth` holds what the
    options add to it, which is nothing for `concur` as published."""

    law: Law
    initial_window: int
    min_window: int
    max_window: int
    growth: Growth

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        return Verdict(None, self._clamp(places_held or self.initial_window), Branch.HOLD, "the start")

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        if capacity is None:
            raise ValueError("the law needs a bounded window")
        if sample.stale:
            return Verdict(capacity, capacity, Branch.HOLD, f"stale sample: {sample.note}")
        if sample.usage is None:
            return Verdict(capacity, capacity, Branch.HOLD, "the engine tells no KV usage")
        lawful, branch = self.law.step(capacity, sample.usage, sample.hit_rate)
        hit = "undefined" if sample.hit_rate is None else f"{sample.hit_rate:.2f}"
        reason = f"U {sample.usage:.2f}, H {hit}"
        bounded, served = self._clamp(lawful), _served(sample, load)
        proposed, branch, remark = self.growth.apply(capacity, bounded, branch, load, served=served)
        after = self._clamp(proposed)
        if remark:
            reason += f"; {remark}"
        if lawful != bounded and not remark:
            reason += f"; {lawful} held at the bound {bounded}"
        return Verdict(capacity, after, branch, reason)

    def adopt(self, earlier: Policy) -> None:
        if isinstance(earlier, Aimd):
            self.growth.adopt(earlier.growth)

    def _clamp(self, window: int) -> int:
        return max(self.min_window, min(self.max_window, window))


def _served(sample: Sample, load: Load) -> bool:
    """Whether the engine has shown any sign of what our agents generate; without one it only looks idle. To an estimate
    it does not: that counts the agents themselves."""
    return not load.generating or sample.estimated or sample.lookup_tokens != 0 or bool(sample.running_requests)


def make_policy(control: AnyControl, agents: int) -> Policy:
    """The policy that a workload's `control` block names, for one pool of a batch of `agents` agents."""
    match control:
        case NoControl():
            return Fixed(None, "no control")
        case RequestCap():
            return Fixed(control.cap, f"at most {control.cap} requests in flight")
        case AgentCap():
            return Fixed(control.cap, f"at most {control.cap} agents")
        case TokenWindow():
            return Tokens(control.admit_share, control.pause_share, control.hold_seconds, control.initial_window)
        case Concur():
            law = Law(control.alpha, control.beta, control.u_low, control.u_high, control.h_thresh)
            most = max(control.min_window, control.max_window or agents)
            growth = Growth(
                control.grow_only_when_binding,
                control.grow_only_when_served,
                control.cut_cooldown_seconds,
                control.slow_start,
                control.remember_collapse,
            )
            return Aimd(law, control.initial_window, control.min_window, most, growth)
