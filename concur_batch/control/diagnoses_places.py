"""Diagnoses of who holds the places, and of who waits for one. Pure."""

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
    lasted_seconds,
    recomputed_share,
    streaks,
    waiting,
)

# Of resumptions. A bound on pauses is there to be met by a few agents; beyond that it is the bound that admits.
FORCED_SHARE = 0.1
IDLE_SHARE = 0.8
# Beyond 15 s without a request hardly anything of a prefix is left under overload (measured by others on an H100):
# a place held for twice as long protects nothing.
IDLE_SECONDS = 30.0
STARVED_TIMES_MEDIAN = 10.0


def forced(case: Case) -> Finding | None:
    """Many agents came in beyond the window."""
    count = sum(row["forced_in_period"] for row in case.rows)
    resumed = sum(row["resumed_in_period"] for row in case.rows)
    if not count or count < FORCED_SHARE * resumed:
        return None
    beyond = [row["places_held"] - row["window_after"] for row in case.rows if row["window_after"] is not None]
    return Finding(
        "agents are let in beyond the window",
        f"{count} of {resumed} resumptions" + (f"; up to {max(beyond)} more places were held than W" if beyond else ""),
        "pauses last longer than control.extensions.longest_pause_seconds allows: too many agents for the window",
        "raise control.extensions.longest_pause_seconds, or use control.resume_age_seconds, which keeps to the window",
    )


def idle_window(case: Case) -> Finding | None:
    """Most places are held by agents in tool wait, for long, while others wait for a place.

    Under a request cap no tool wait holds a place.
    """
    if case.settings["policy"] == "request_cap":
        return None
    idle = [
        streak
        for streak in streaks(case.rows, _idle)
        if len(streak) >= LEAST_PERIODS and lasted_seconds(streak, case.settings) >= IDLE_SECONDS
    ]
    if not idle:
        return None
    seconds = [lasted_seconds(streak, case.settings) for streak in idle]
    worst = max((row for streak in idle for row in streak), key=waiting)
    return Finding(
        "the window is idle",
        f"for {sum(seconds):.0f} s, {max(seconds):.0f} s at a time, {IDLE_SHARE:.0%} or more of the places were held "
        f"in tool wait, once {_in_tools(worst)} of {worst['places_held']} while {waiting(worst)} agents waited",
        "tools hang, or take far longer than generations",
        "set control.extensions.longest_tool_wait_seconds (control.hold_seconds of token_window) or lower it, a "
        "shorter tool deadline, or a larger window",
    )


def _idle(row: Row) -> bool:
    held = row["places_held"]
    return row["pool_state"] == "open" and held > 0 and waiting(row) > 0 and _in_tools(row) >= IDLE_SHARE * held


def _in_tools(row: Row) -> int:
    """Places held by agents in tool wait: those adrift have given theirs back."""
    count: int = max(row["tool_wait"] - row["adrift"], 0)
    return count


def overshoot(case: Case) -> Finding | None:
    """The holders' histories fill more than the pool, and it recomputes.

    Histories alone do not tell: a prompt that agents share counts once in the pool and for each of them here.
    """
    beyond = [
        number
        for number, row in enumerate(case.rows)
        if row["window_after"] is not None and row["pool_tokens"] and row["history_tokens"] > row["pool_tokens"]
    ]
    if len(beyond) < LEAST_PERIODS:
        return None
    # What is evicted is computed again only as its agents return.
    seen = case.rows[beyond[0] : beyond[-1] + 1 + LEAST_PERIODS]
    if recomputed_share(seen) < THRASHING_SHARE:
        return None
    most = max(case.rows[number]["history_tokens"] / case.rows[number]["pool_tokens"] for number in beyond)
    jump = max(
        (
            after["history_tokens"] - before["history_tokens"]
            for before, after in pairwise(case.rows)
            if after["places_held"] <= before["places_held"]
        ),
        default=0,
    )
    return Finding(
        "the holders' histories overshoot the pool",
        f"in {len(beyond)} periods they were more than the pool, up to {most:.2f} of it, and "
        f"{recomputed_share(seen):.0%} of the prefill was recomputation; the largest rise in a period without another "
        f"holder was {max(jump, 0):,} tokens",
        "a huge observation (one large rise), or histories that grew after their agents were let in (many small ones)",
        "control.extensions.long_request_tokens against large rises, growth_turns against growth; kv_budget_tokens "
        "ends agents that grow without bound",
    )


def starves(agents: Sequence[Row]) -> Finding | None:
    """Some agents were paused very much longer than the others. `agents`: final rows of the whole run."""
    paused = sorted(row["paused_seconds"] for row in agents if row["paused_seconds"] > 0)
    if len(paused) < LEAST_PERIODS or paused[-1] < STARVED_TIMES_MEDIAN * paused[len(paused) // 2]:
        return None
    worst = max(agents, key=lambda row: row["paused_seconds"])
    return Finding(
        "agents starve",
        f"{worst['agent_id']} was paused for {worst['paused_seconds']:.0f} s in {worst['pauses']} pauses; "
        f"the median of paused agents is {paused[len(paused) // 2]:.1f} s",
        "the same agents are paused first, again and again",
        "set control.extensions.longest_pause_seconds, or of the law control.max_consecutive_pauses, "
        "control.resume_age_seconds or a larger control.min_window",
    )


PLACES: tuple[Check, ...] = (forced, idle_window, overshoot)
