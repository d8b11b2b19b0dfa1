"""When an agent ends though it has not said that it is done. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import NamedTuple

from concur_batch.agent.spec import Ending
from concur_batch.agent.tally import Tally
from concur_batch.workload.schema import Limits


class Bound(NamedTuple):
    """How long the next output may be, in tokens, and the limit that would cut it there."""

    tokens: int
    name: str


@dataclass(frozen=True, slots=True)
class Budget:
    """All that bounds one agent. `context_tokens` is the engine's limit or the workload's, whichever is smaller,
    `deadline_seconds` counts from the run's start."""

    limits: Limits
    max_tokens: int  # of one output
    context_tokens: int
    kv_budget_tokens: int | None
    deadline_seconds: float | None

    def over(
        self,
        tally: Tally,
        history_tokens: int,
        pool_tokens: int | None,
        admitted_seconds: float | None,
        now_seconds: float,
    ) -> Ending | None:
        """The ending, where a limit is reached; `pool_tokens` is the largest pool's size, None where nobody tells."""
        limits = self.limits
        if tally.turns >= limits.turns:
            return limit("turns", f"{limits.turns} turns")
        if history_tokens >= self.context_tokens:
            return limit("context", f"the history fills the context of {self.context_tokens} tokens")
        if pool_tokens is not None and history_tokens >= pool_tokens:
            return oversized(f"the history fills the whole KV pool of {pool_tokens} tokens")
        if self.kv_budget_tokens is not None and history_tokens > self.kv_budget_tokens:
            return limit("kv_budget", f"the history has outgrown the budget of {self.kv_budget_tokens} tokens")
        if limits.output_tokens is not None and tally.output_tokens >= limits.output_tokens:
            return limit("output_tokens", f"{limits.output_tokens} output tokens")
        if limits.active_seconds is not None and tally.active_seconds >= limits.active_seconds:
            return limit("active_seconds", f"{limits.active_seconds:g} s of generation and tools")
        lived_seconds = 0.0 if admitted_seconds is None else now_seconds - admitted_seconds
        if limits.wall_seconds is not None and lived_seconds >= limits.wall_seconds:
            return limit("wall_seconds", f"{limits.wall_seconds:g} s since its admission")
        if self.deadline_seconds is not None and now_seconds >= self.deadline_seconds:
            return self.past_deadline()
        return None

    def next_output(self, tally: Tally, history_tokens: int, pool_tokens: int | None) -> Bound:
        """The bound of the next output; `pool_tokens` is the size of the pool that it runs in."""
        bounds = [Bound(self.max_tokens, "length"), Bound(self.context_tokens - history_tokens, "context")]
        if self.limits.output_tokens is not None:
            bounds.append(Bound(self.limits.output_tokens - tally.output_tokens, "output_tokens"))
        if pool_tokens is not None:
            bounds.append(Bound(max(1, pool_tokens - history_tokens), "pool"))
        return min(bounds, key=lambda bound: bound.tokens)

    def without_limits(self, max_tokens: int) -> Budget:
        """The bounds of an agent that is replayed: those of the engine and of control, not those of the workload, by
        which the recording has ended already."""
        return replace(self, limits=Limits(turns=sys.maxsize), max_tokens=max_tokens)

    def past_deadline(self) -> Ending:
        """The ending of an agent whose deadline has come."""
        return limit("deadline", f"not done by its deadline, {self.deadline_seconds:g} s after the run's start")


def limit(reason: str, detail: str) -> Ending:
    """A clean end at a limit."""
    return Ending("limit", reason, "limit", detail)


def oversized(detail: str) -> Ending:
    """The end of an agent that no pool can hold."""
    return Ending("oversized", "pool", "limit", detail)


def cut(bound: Bound) -> Ending:
    """The end of an agent whose output was cut: nothing in it may be executed."""
    detail = "the turn's output was cut at its token limit; nothing in it was executed"
    return oversized(detail) if bound.name == "pool" else limit(bound.name, detail)
