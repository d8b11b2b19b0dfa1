"""Diagnoses of the engine: what it tells, who else uses it, whether it was there. Pure; for every policy."""

from __future__ import annotations

from itertools import groupby

from concur_batch.control.finding import Case, Check, Finding, lasted_seconds, streaks, waiting
from concur_batch.engine.drift import FOREIGN_LOAD_RATIO, HIT_RATE_DRIFT

STALE_SHARE = 0.2


def stale_samples(case: Case) -> Finding | None:
    """Many periods in which the engine told nothing new."""
    stale = sum(row["stale"] for row in case.rows)
    if stale < STALE_SHARE * len(case.rows):
        return None
    oldest = max(row["sample_age_seconds"] or 0 for row in case.rows)
    return Finding(
        "the engine's signals are stale",
        f"{stale} of {len(case.rows)} periods had no fresh sample; the oldest was {oldest:.1f} s old",
        "the engine refreshes its gauges only every so many decode steps, or is too busy to answer",
        "start the server with a lower --decode-log-interval, or lengthen control.period_seconds",
    )


def foreign_load(case: Case) -> Finding | None:
    """The engine looks up clearly more tokens than the run's requests have."""
    seen = [row["drift_lookups"] for row in case.rows if (row["drift_lookups"] or 1.0) > FOREIGN_LOAD_RATIO]
    if not seen:
        return None
    return Finding(
        "other clients use the engine",
        f"in {len(seen)} periods it looked up more tokens than this run's requests have, up to {max(seen):.1f} times",
        "another run or user shares the server, or many requests were sent again",
        "give the run a server of its own: the window answers for load that it cannot pause",
    )


def counters_disagree(case: Case) -> Finding | None:
    """The engine's H is another than that of the run's requests. Foreign load explains it, so is left out."""
    seen = [
        row["drift_hit_rate"]
        for row in case.rows
        if abs(row["drift_hit_rate"] or 0.0) > HIT_RATE_DRIFT and (row["drift_lookups"] or 1.0) <= FOREIGN_LOAD_RATIO
    ]
    if not seen:
        return None
    worst = max(seen, key=abs)
    above = worst > 0
    return Finding(
        "the engine's counters and its requests disagree",
        f"in {len(seen)} periods H by the engine was off by up to {worst:+.2f} from H by the requests' cached tokens",
        "H counts hits in host memory" if above else "H counts the retries of retracted requests, which miss",
        "move control.h_thresh by the difference, or check which counters the engine's version has"
        if above
        else "fewer agents at once (control.max_window, control.u_high): retractions say that the pool is too full",
    )


def pool_down(case: Case) -> Finding | None:
    """The pool did not answer, or a request found it down."""
    outages = list(streaks(case.rows, lambda row: row["pool_state"] in ("closed", "suspect")))
    if not outages:
        return None
    seconds = [lasted_seconds(outage, case.settings) for outage in outages]
    most = max(waiting(row) for outage in outages for row in outage)
    return Finding(
        "the pool was down",
        f"outages: {len(outages)}, {sum(seconds):.0f} s in all and {max(seconds):.0f} s at most; up to {most} agents "
        "waited",
        "the server died or was unreachable, or is too busy to answer",
        "see the engine's log; its agents went on elsewhere, or waited until it answered",
    )


def restarts(case: Case) -> Finding | None:
    """Counters went back or the pool changed its size."""
    count = sum(row["restarted"] for row in case.rows)
    if not count:
        return None
    sizes = [size for size, _ in groupby(row["pool_tokens"] for row in case.rows if row["pool_tokens"])]
    resized = len(sizes) > 1
    return Finding(
        "the engine was restarted",
        f"restarts: {count}"
        + (f"; its pool went from {' to '.join(f'{size:,}' for size in sizes)} tokens" if resized else ""),
        "it died and was started again: every prefix in it was lost and computed again",
        "see the engine's log"
        + ("; fix the pool's size (--max-total-tokens), since every threshold is a share of it" if resized else ""),
    )


ENGINE: tuple[Check, ...] = (stale_samples, foreign_load, counters_disagree, pool_down, restarts)
