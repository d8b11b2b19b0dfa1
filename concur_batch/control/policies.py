"""The policies: how many places a window has. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from concur_batch.control.growth import Growth, Load
from concur_batch.control.law import Branch, Law
from concur_batch.control.room import Room
from concur_batch.engine.signals import Sample
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, NoControl, RequestCap, TokenWindow

# A prefill that takes longer than a period is told when it ends.
_PREFILL_SPAN_SECONDS = 5.0
# Of the peak, from one period to the next: half of it after some two minutes of one-second periods.
_PREFILL_KEPT = 0.995


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a control period decided: the capacity before and after (None: unbounded), the branch and its reason; and
    the room in tokens, where the policy bounds that."""

    before: int | None
    after: int | None
    branch: Branch
    reason: str
    room: Room | None = None


@dataclass(slots=True)
class PrefillRate:
    """How fast the engine prefills, from the tokens that it has computed each period: the most over some seconds, since
    it decodes beside it, and waits for tools. Old peaks fade."""

    tokens_per_second: float = 0.0
    _periods: deque[tuple[float, int]] = field(default_factory=deque)  # the end, and the tokens computed in it

    def add(self, now_seconds: float, computed_tokens: int) -> None:
        """End a period."""
        self._periods.append((now_seconds, computed_tokens))
        while now_seconds - self._periods[0][0] > _PREFILL_SPAN_SECONDS and len(self._periods) > 2:
            self._periods.popleft()
        span_seconds = now_seconds - self._periods[0][0]
        if span_seconds > 0:
            now = sum(tokens for _, tokens in list(self._periods)[1:]) / span_seconds
            self.tokens_per_second = max(now, self.tokens_per_second * _PREFILL_KEPT)


class Policy(Protocol):
    """Gives one window its capacity: at the start, and then once a period."""

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        """The first capacity; `places_held` is above zero where a controller takes over a running batch."""
        ...

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        """The capacity for the next period."""
        ...

    def adopt(self, earlier: Policy) -> None:
        """Go on from where a policy of the same kind has come to: the settings have changed in the middle of a run."""
        ...


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


@dataclass(slots=True)
class Tokens:
    """`token_window`: the histories of the agents inside fill a share of the pool, and no more.

    A tool wait is worth its place for as long as the engine needs to prefill a whole pool: a history that fills a share
    s of the pool keeps others' s of the work out while it waits, and costs s of that time to compute again. Waiting is
    given up when it has cost as much as losing the prefix does (the ski rental rule: at most twice the least cost,
    however long tools take).
    """

    admit_share: float
    pause_share: float
    hold_seconds: float | None
    initial_window: int
    prefill: PrefillRate = field(default_factory=PrefillRate)

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        return self._verdict(None, pool_tokens, "the start")

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        self.prefill.add(load.seconds, sample.computed_tokens or 0)
        return self._verdict(capacity, load.pool_tokens, f"{load.footprint_tokens} tokens inside")

    def adopt(self, earlier: Policy) -> None:
        if isinstance(earlier, Tokens):
            self.prefill = earlier.prefill

    def _verdict(self, before: int | None, pool_tokens: int | None, reason: str) -> Verdict:
        if pool_tokens is None:
            return Verdict(before, self.initial_window, Branch.FIXED, "the pool's size is not known")
        hold_seconds = self.hold_seconds
        if hold_seconds is None and self.prefill.tokens_per_second:
            hold_seconds = pool_tokens / self.prefill.tokens_per_second
        room = Room(int(self.admit_share * pool_tokens), int(self.pause_share * pool_tokens), hold_seconds)
        held = "" if hold_seconds is None else f", tool waits hold {hold_seconds:.1f} s"
        return Verdict(before, None, Branch.FIXED, f"{reason} of {room.admit_tokens}{held}", room)


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
