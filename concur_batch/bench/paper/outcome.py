"""What one simulation of the paper's bench gave. All figures are simulated. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concur_batch.bench.batch import BatchResult
from concur_batch.bench.paper.cells import Cell
from concur_batch.bench.plan import Plan
from concur_batch.bench.same_work import work_of
from concur_batch.control.law import Branch

Row = Mapping[str, Any]

_SERIES = ("seconds", "usage", "occupancy", "hit_rate", "window_after", "finished")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tokens are sums over the batch, `seconds` until its last agent's end.

    `looked_up_tokens` are the prompts of first attempts, of which the device and the host had their hits.
    `computed_tokens` are those of every prefill, of which `recomputed_tokens` had been computed for the same agent
    before. `prefill_seconds` and `decode_seconds` are those that the engine was busy so; `tool_seconds`,
    `waiting_seconds` (for a place) and `engine_seconds` are sums over the agents' lives. `work` are the rows to compare
    the work with, `series` a row each control period.
    """

    cell: Cell
    seconds: float
    looked_up_tokens: int
    device_hit_tokens: int
    host_hit_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    evicted_tokens: int
    retractions: int
    prefill_seconds: float
    decode_seconds: float
    tool_seconds: float
    waiting_seconds: float
    engine_seconds: float
    increases: int
    cuts: int
    work: Sequence[Row]
    series: Sequence[Row]

    @property
    def hit_rate(self) -> float:
        """Of all tiers."""
        return (self.device_hit_tokens + self.host_hit_tokens) / self.looked_up_tokens

    @property
    def device_hit_rate(self) -> float:
        return self.device_hit_tokens / self.looked_up_tokens

    @property
    def window_mean(self) -> float | None:
        """Over the control periods; None without a window."""
        windows = [row["window_after"] for row in self.series if row["window_after"] is not None]
        return sum(windows) / len(windows) if windows else None


def outcome_of(cell: Cell, plans: Sequence[Plan], result: BatchResult) -> Outcome:
    """The figures of a batch on one engine."""
    (counters,) = result.counters.values()
    waits = ("pending_seconds", "paused_seconds", "queue_seconds")
    waiting = sum(row[name] for row in result.agents for name in waits)
    tools = sum(turn.tool_seconds for plan in plans for turn in plan.turns[:-1])
    lives = sum(row["ended_seconds"] for row in result.agents)
    # What a retraction throws away is computed again too; the agents' rows count first attempts only.
    again = counters.prefill_compute - counters.prefill_input
    return Outcome(
        cell=cell,
        seconds=result.seconds,
        looked_up_tokens=counters.prefill_input + counters.prefill_device_hit + counters.prefill_host_hit,
        device_hit_tokens=counters.prefill_device_hit,
        host_hit_tokens=counters.prefill_host_hit,
        computed_tokens=counters.prefill_compute,
        recomputed_tokens=sum(row["recomputed_tokens"] for row in result.agents) + again,
        evicted_tokens=counters.evicted,
        retractions=counters.retracted_requests,
        prefill_seconds=counters.prefill_seconds,
        decode_seconds=counters.decode_seconds,
        tool_seconds=tools,
        waiting_seconds=waiting,
        engine_seconds=lives - waiting - tools,
        increases=sum(row["branch"] == Branch.GROW for row in result.control),
        cuts=sum(row["branch"] == Branch.CUT for row in result.control),
        work=work_of(result.agents),
        series=[{name: row[name] for name in _SERIES} for row in result.control],
    )


def decomposition(outcome: Outcome) -> dict[str, float]:
    """The shares of the agents' time that the paper tells: they sum to 1. Waits for a place are left out.

    While an agent is in the engine it waits for whatever the engine does, for itself or for others: that time is split
    as the engine's busy time is, into decode and prefill, and prefill by tokens into first and recomputed ones.
    """
    total = outcome.tool_seconds + outcome.engine_seconds
    busy = outcome.prefill_seconds + outcome.decode_seconds
    in_engine = outcome.engine_seconds / total
    prefill = in_engine * outcome.prefill_seconds / busy
    recomputed = outcome.recomputed_tokens / outcome.computed_tokens
    return {
        "tool": outcome.tool_seconds / total,
        "decode": in_engine * outcome.decode_seconds / busy,
        "first prefill": prefill * (1 - recomputed),
        "recomputation": prefill * recomputed,
    }
