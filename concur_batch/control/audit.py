"""What a window's trajectory says about its settings: named diagnoses with evidence and what to change. Pure.

The first four are the paper's (a window that never grows, never is cut, never recovers, or is a static limit); the
others are of operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Row = Mapping[str, Any]

# A trajectory of fewer periods shows nothing.
LEAST_PERIODS = 5
# Above this share of computed prompt tokens computed again, a cache thrashes: a healthy one recomputes a few per cent.
THRASHING_SHARE = 0.3
STALE_SHARE = 0.2
# A window that is at most this share of the batch, for most of the time in which agents wait, is a static limit.
SMALL_WINDOW_SHARE = 0.05
LONG_SHARE = 0.5
TURNS_PER_PERIOD = 0.2
STARVED_TIMES_MEDIAN = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis that holds: what was seen, why it likely is so, and the setting to change."""

    name: str
    evidence: str
    cause: str
    change: str


def audit(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> list[Finding]:
    """The diagnoses that hold for a run.

    `control` are the rows of its control table in order of time, `agents` its final agents rows, `settings` the
    workload's control block.
    """
    periods = [row for row in control if row["window_after"] is not None]
    findings = [check(control, agents, settings) for check in _ANY]
    if settings["policy"] == "concur" and len(periods) >= LEAST_PERIODS:
        findings += [check(periods, agents, settings) for check in _LAW]
    return [finding for finding in findings if finding is not None]


def never_grows(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """Warmup with agents waiting and U never under u_low."""
    seen = [row for row in control if row["phase"] == "warmup" and _waiting(row) and row["usage"] is not None]
    if len(seen) < LEAST_PERIODS or any(row["branch"] == "grow" for row in seen):
        return None
    least = min(row["usage"] for row in seen)
    return Finding(
        "the window never grows in warmup",
        f"{len(seen)} periods of warmup with agents waiting, U at least {least:.2f}, u_low {settings['u_low']}",
        "U counts memory that is no KV cache, or u_low is below what the first agents already lock",
        "raise control.u_low above the least U seen, or check what the engine reports as KV usage",
    )


def never_cut(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """A middle phase that recomputes, with no cut."""
    seen = [row for row in control if row["phase"] == "middle"]
    computed = sum(row["computed_tokens"] or 0 for row in seen)
    recomputed = sum(row["recomputed_tokens"] for row in seen)
    if len(seen) < LEAST_PERIODS or not computed or recomputed / computed < THRASHING_SHARE:
        return None
    if any(row["branch"] == "cut" for row in seen):
        return None
    rates = [row["hit_rate"] for row in seen if row["hit_rate"] is not None]
    usages = [row["usage"] for row in seen if row["usage"] is not None]
    return Finding(
        "the window is never cut in the middle",
        f"{recomputed / computed:.0%} of the prefill was recomputation; H at least {min(rates, default=0):.2f} "
        f"(h_thresh {settings['h_thresh']}), U at most {max(usages, default=0):.2f} (u_high {settings['u_high']})",
        "the prompt that agents share keeps H up whatever else is evicted, or H counts hits in host memory, or locked "
        "U stays low because agents wait for tools",
        "raise control.h_thresh above the least H seen, or lower control.u_high below the greatest U",
    )


def never_recovers(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """Agents wait for long after the last cut, and the window does not grow."""
    cuts = [number for number, row in enumerate(control) if row["branch"] == "cut"]
    if not cuts:
        return None
    seen = [row for row in control[cuts[-1] + 1 :] if _waiting(row) and row["usage"] is not None]
    if len(seen) < 2 * LEAST_PERIODS or any(row["branch"] == "grow" for row in seen):
        return None
    least = min(row["usage"] for row in seen)
    return Finding(
        "the window never recovers after its last cut",
        f"{len(seen)} periods with agents waiting and no increase; U at least {least:.2f}, u_low {settings['u_low']}",
        "u_low is too low, or agents that have finished were not released",
        "raise control.u_low above the least U seen",
    )


def static_limit(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """A small window for most of the time in which agents wait."""
    seen = [row for row in control if _waiting(row)]
    small = max(settings["min_window"], int(SMALL_WINDOW_SHARE * len(agents)))
    low = [row for row in seen if row["window_after"] <= small]
    if len(seen) < LEAST_PERIODS or len(low) < LONG_SHARE * len(seen):
        return None
    return Finding(
        "the window is only a small static limit",
        f"W was {small} or less in {len(low)} of {len(seen)} periods in which agents waited",
        "one congestion was cut several times, or u_low keeps the window from growing again",
        "lengthen control.period_seconds to about one turn of an agent, or raise control.u_low",
    )


def oscillates(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """The window turns between growth and cuts all the time."""
    moves = [row["branch"] for row in control if row["branch"] in ("grow", "cut")]
    turns = sum(before != after for before, after in pairwise(moves))
    if turns < TURNS_PER_PERIOD * len(control) or turns < LEAST_PERIODS:
        return None
    return Finding(
        "the window oscillates",
        f"{turns} turns between growth and cut in {len(control)} periods",
        "U swings with single requests: outputs are short, or the period is shorter than a turn",
        "set control.smoothing to mean, or lengthen control.period_seconds",
    )


def never_binds(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """Nobody ever waits: the window has no effect."""
    if any(_waiting(row) for row in control):
        return None
    return Finding(
        "the window never binds",
        f"in {len(control)} periods no agent waited for admission",
        "the batch is smaller than the window",
        "nothing: the run would have been the same without control",
    )


def stale_samples(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """Many periods in which the engine told nothing new."""
    stale = sum(row["stale"] for row in control)
    if not control or stale < STALE_SHARE * len(control):
        return None
    oldest = max(row["sample_age_seconds"] or 0 for row in control)
    return Finding(
        "the engine's signals are stale",
        f"{stale} of {len(control)} periods had no fresh sample; the oldest was {oldest:.1f} s old",
        "the engine refreshes its gauges only every so many decode steps, or is too busy to answer",
        "start the server with a lower --decode-log-interval, or lengthen control.period_seconds",
    )


def starves(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> Finding | None:
    """Some agents were paused very much longer than the others."""
    paused = sorted(row["paused_seconds"] for row in agents if row["pauses"])
    if len(paused) < LEAST_PERIODS or paused[-1] < STARVED_TIMES_MEDIAN * paused[len(paused) // 2]:
        return None
    worst = max(agents, key=lambda row: row["paused_seconds"])
    return Finding(
        "agents starve",
        f"{worst['agent_id']} was paused for {worst['paused_seconds']:.0f} s in {worst['pauses']} pauses; "
        f"the median of paused agents is {paused[len(paused) // 2]:.1f} s",
        "the newest are paused first, again and again",
        "a larger control.min_window, or fewer cuts",
    )


def _waiting(row: Row) -> bool:
    return bool(row["pending"] + row["paused"])


Check = Callable[[Sequence[Row], Sequence[Row], Row], Finding | None]
_LAW: tuple[Check, ...] = (never_grows, never_cut, never_recovers, static_limit, oscillates, never_binds)
_ANY: tuple[Check, ...] = (stale_samples, starves)
