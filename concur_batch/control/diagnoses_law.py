"""Diagnoses of the law's window. Pure.

The first four are the paper's: a window that never grows, never is cut, never recovers, or is a static limit. The
others are faults of the published law that were seen on real engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from concur_batch.control.finding import (
    LEAST_PERIODS,
    THRASHING_SHARE,
    Case,
    Check,
    Finding,
    Row,
    recomputed_share,
    waiting,
)

# A window that is at most this share of the batch, for most of the time in which agents wait, is a static limit.
SMALL_WINDOW_SHARE = 0.05
LONG_SHARE = 0.5
TURNS_PER_PERIOD = 0.2
# Of all cuts. A few fall together by chance in a long run.
RECUT_SHARE = 0.2


def never_grows(case: Case) -> Finding | None:
    """Warmup with agents waiting and U never under u_low."""
    seen = [row for row in case.rows if row["phase"] == "warmup" and waiting(row) and row["usage"] is not None]
    if len(seen) < LEAST_PERIODS or any(row["branch"] == "grow" for row in seen):
        return None
    least = min(row["usage"] for row in seen)
    return Finding(
        "the window never grows in warmup",
        f"{len(seen)} periods of warmup with agents waiting, U at least {least:.2f}, u_low {case.settings['u_low']}",
        "U counts memory that is no KV cache, or u_low is below what the first agents already lock",
        "raise control.u_low above the least U seen, or check what the engine reports as KV usage",
    )


def never_cut(case: Case) -> Finding | None:
    """A middle phase that recomputes, with no cut."""
    seen = [row for row in case.rows if row["phase"] == "middle"]
    if len(seen) < LEAST_PERIODS or recomputed_share(seen) < THRASHING_SHARE:
        return None
    if any(row["branch"] == "cut" for row in seen):
        return None
    rates = [row["hit_rate"] for row in seen if row["hit_rate"] is not None]
    usages = [row["usage"] for row in seen if row["usage"] is not None]
    return Finding(
        "the window is never cut in the middle",
        f"{recomputed_share(seen):.0%} of the prefill was recomputation; H at least {min(rates, default=0):.2f} "
        f"(h_thresh {case.settings['h_thresh']}), U at most {max(usages, default=0):.2f} "
        f"(u_high {case.settings['u_high']})",
        "the prompt that agents share keeps H up whatever else is evicted, or H counts hits in host memory, or locked "
        "U stays low because agents wait for tools",
        "raise control.h_thresh above the least H seen, or lower control.u_high below the greatest U",
    )


def never_recovers(case: Case) -> Finding | None:
    """Agents wait for long after the last cut, and the window does not grow."""
    cuts = [number for number, row in enumerate(case.rows) if row["branch"] == "cut"]
    if not cuts:
        return None
    seen = [row for row in case.rows[cuts[-1] + 1 :] if waiting(row) and row["usage"] is not None]
    if len(seen) < 2 * LEAST_PERIODS or any(row["branch"] == "grow" for row in seen):
        return None
    least = min(row["usage"] for row in seen)
    return Finding(
        "the window never recovers after its last cut",
        f"{len(seen)} periods with agents waiting and no increase; U at least {least:.2f}, "
        f"u_low {case.settings['u_low']}",
        "u_low is too low, or agents that have finished were not released",
        "raise control.u_low above the least U seen",
    )


def static_limit(case: Case) -> Finding | None:
    """A small window for most of the time in which agents wait."""
    seen = [row for row in case.rows if waiting(row)]
    small = max(case.settings["min_window"], int(SMALL_WINDOW_SHARE * case.batch))
    low = [row for row in seen if row["window_after"] <= small]
    if len(seen) < LEAST_PERIODS or len(low) < LONG_SHARE * len(seen):
        return None
    return Finding(
        "the window is only a small static limit",
        f"W was {small} or less in {len(low)} of {len(seen)} periods in which agents waited",
        "one congestion was cut several times, or u_low keeps the window from growing again",
        "set control.cut_cooldown_seconds, lengthen control.period_seconds to about one turn of an agent, or raise "
        "control.u_low",
    )


def oscillates(case: Case) -> Finding | None:
    """The window turns between growth and cuts all the time."""
    moves = [row["branch"] for row in case.rows if row["branch"] in ("grow", "cut")]
    turns = sum(before != after for before, after in pairwise(moves))
    if turns < TURNS_PER_PERIOD * len(case.rows) or turns < LEAST_PERIODS:
        return None
    return Finding(
        "the window oscillates",
        f"{turns} turns between growth and cut in {len(case.rows)} periods",
        "U swings with single requests: outputs are short, or the period is shorter than a turn",
        "set control.smoothing to mean or ewma, set control.remember_collapse, or lengthen control.period_seconds",
    )


def never_binds(case: Case) -> Finding | None:
    """Nobody ever waits: the window has no effect."""
    if any(waiting(row) for row in case.rows):
        return None
    return Finding(
        "the window never binds",
        f"in {len(case.rows)} periods no agent waited for admission",
        "the batch is smaller than the window",
        "nothing: the run would have been the same without control",
    )


def recuts(case: Case) -> Finding | None:
    """Cuts while pauses of the cut before are outstanding: what they did to the engine cannot be seen yet."""
    congestions = _congestions(case.rows)
    cuts = sum(map(len, congestions))
    again = cuts - len(congestions)
    if not again or again < RECUT_SHARE * cuts:
        return None
    worst = max(congestions, key=len)
    return Finding(
        "one congestion is cut several times",
        f"{again} of {cuts} cuts came before the pauses of the one before had taken effect; W went from "
        f"{worst[0]['window_before']} to {worst[-1]['window_after']} in {len(worst)} cuts of one congestion",
        "a pause takes effect only at the agent's next boundary, and the period is shorter than a turn",
        "set control.cut_cooldown_seconds to about one turn of an agent, or longer than it is",
    )


def _congestions(rows: Sequence[Row]) -> list[list[Row]]:
    """The cuts, those together between which marked agents were always outstanding."""
    congestions: list[list[Row]] = []
    outstanding = False
    for row in rows:
        cut = row["branch"] == "cut"
        if cut:
            congestions = congestions if outstanding else [*congestions, []]
            congestions[-1].append(row)
        outstanding = (cut or outstanding) and row["marked"] > 0
    return congestions


def grows_unbound(case: Case) -> Finding | None:
    """Growth while nobody waits, and then a cut that pauses nobody."""
    idle = grown = 0
    vain: list[Row] = []
    for row in case.rows:
        if row["branch"] == "grow" and not waiting(row) and row["places_held"] <= row["window_before"]:
            idle += 1
        elif row["branch"] == "cut":
            if idle and row["places_held"] <= row["window_after"]:
                vain.append(row)
                grown += idle
            idle = 0
    if not vain:
        return None
    worst = max(vain, key=lambda row: row["window_before"] - row["places_held"])
    return Finding(
        "the window grows while it does not bind",
        f"{grown} increases while nobody waited and places were free, then {len(vain)} cuts that paused nobody, one of "
        f"them from {worst['window_before']} to {worst['window_after']} with {worst['places_held']} places held",
        "the law grows on a low U whether anybody wants a place or not",
        "set control.grow_only_when_binding",
    )


LAW: tuple[Check, ...] = (
    *(never_grows, never_cut, never_recovers, static_limit),
    *(oscillates, never_binds, recuts, grows_unbound),
)
