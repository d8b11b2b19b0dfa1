"""Diagnoses of a window in tokens (`token_window`). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from concur_batch.control.finding import LEAST_PERIODS, Case, Check, Finding, Row, recomputed_share, waiting

LONG_SHARE = 0.5
# A pool is given less than this for lost prefixes only after many seconds of losses.
CUT_SHARE = 0.95
# An engine that decodes for so few at once does little more work than for one.
FEW_AGENTS = 4
# With a turn more of each, a room of more than this is full.
FULL_SHARE = 0.75
# In simulated batches (three pool sizes, eight loads) agents were paused 2.2 times on average at most, and no agent
# more than six times.
CHURN_PAUSES = 5.0
MANY_PAUSES = 10
MANY_TIMES_MEAN = 5.0


def unknown_pool(case: Case) -> Finding | None:
    """Places are bounded, since nothing tells how many tokens the pool holds."""
    seen = [row for row in case.rows if row["window_tokens"] is None and row["window_after"] is not None]
    if len(seen) < LEAST_PERIODS:
        return None
    return Finding(
        "the pool's size is not known",
        f"in {len(seen)} of {len(case.rows)} periods W was {seen[-1]['window_after']} agents, however long their "
        f"histories; up to {max(map(waiting, seen))} agents waited",
        "the engine does not tell its metrics, or an API gives none",
        "start the server with its metrics (SGLang: --enable-metrics), or set engine.pool_tokens; without both, "
        "control.initial_window is the whole control",
    )


def lost_prefixes(case: Case) -> Finding | None:
    """Agents find less of their prefixes than they should, so that not all of the pool is counted on."""
    seen = [row for row in case.rows if (row["pool_share"] or 1.0) < 1.0]
    least = min((row["pool_share"] for row in seen), default=1.0)
    if len(seen) < LEAST_PERIODS or least >= CUT_SHARE:
        return None
    kept, lost = (sum(row[name] or 0 for row in seen) for name in ("kept_tokens", "lost_tokens"))
    of_kept = f"; agents with places lost {lost / kept:.0%} of what had been computed for them" if kept else ""
    return Finding(
        "agents lose prefixes though they keep their places",
        f"in {len(seen)} of {len(case.rows)} periods less than the pool was counted on, once {least:.2f} of it"
        f"{of_kept}",
        "others use the pool, the engine keeps more of it for itself than it tells, or long tool waits hold their "
        "places beyond what the engine keeps",
        "give the run a server of its own; a control.admit_share and pause_share that always leave so much, or a "
        "shorter control.hold_seconds",
    )


def nothing_held(case: Case) -> Finding | None:
    """Tools take so long that nothing is bounded."""
    seen = [row for row in case.rows if row["window_tokens"] is None and row["window_after"] is None]
    if len(seen) < max(LEAST_PERIODS, LONG_SHARE * len(case.rows)):
        return None
    return Finding(
        "no place is worth holding",
        f"in {len(seen)} of {len(case.rows)} periods nobody was bounded, as under policy none; "
        f"{recomputed_share(seen):.0%} of the prefill was recomputation",
        "tools take longer than the engine would need to compute the whole pool anew: a place held through them keeps "
        "others out for more than it saves",
        "nothing, where tools cannot be faster; a cache in host memory (HiCache) keeps what the pool cannot, or "
        "control.hold_seconds holds places all the same",
    )


def few_fill(case: Case) -> Finding | None:
    """A handful of histories is all that the room takes, while others wait."""
    seen = [row for row in case.rows if waiting(row) and row["window_tokens"] is not None and row["places_held"]]
    few = [row for row in seen if row["places_held"] <= FEW_AGENTS]
    if len(seen) < LEAST_PERIODS or len(few) < LONG_SHARE * len(seen):
        return None
    worst = max(few, key=lambda row: row["footprint_tokens"] / row["places_held"])
    mean_tokens = worst["footprint_tokens"] // worst["places_held"]
    return Finding(
        "a few agents fill the pool",
        f"in {len(few)} of {len(seen)} periods in which agents waited, {FEW_AGENTS} or fewer were inside; once "
        f"{worst['places_held']} with {mean_tokens:,} tokens each in a room of {worst['window_tokens']:,} "
        f"of the pool's {worst['pool_tokens'] or 0:,}",
        "contexts are large for the pool, and the engine works for a few at a time",
        "more memory for the pool (more or larger GPUs, fp8 KV, a larger memory fraction), or fewer tokens an agent: "
        "agent.limits.context_tokens, shorter outputs of tools",
    )


def backlogged(case: Case) -> Finding | None:
    """There is room, and the engine has more to do than it can."""
    seen = [row for row in case.rows if waiting(row) and row["window_tokens"] is not None]
    backlog = [row for row in seen if row["intake_tokens"] == 0]
    kept_out = [row for row in backlog if row["footprint_tokens"] < FULL_SHARE * row["window_tokens"]]
    if len(kept_out) < max(LEAST_PERIODS, LONG_SHARE * len(seen)):
        return None
    filled = sum(row["footprint_tokens"] / row["window_tokens"] for row in kept_out) / len(kept_out)
    return Finding(
        "the engine is busier than its pool is full",
        f"in {len(kept_out)} of {len(seen)} periods in which agents waited, requests waited in the engine, and "
        f"{filled:.2f} of the room was taken on average",
        "the engine prefills for most of its time: more agents would wait in its queue instead of in ours",
        "nothing in the control; more replicas, or an engine that prefills faster",
    )


def never_fills(case: Case) -> Finding | None:
    """Nobody ever waits."""
    if any(waiting(row) or row["window_tokens"] is None for row in case.rows):
        return None
    most = max(row["footprint_tokens"] / max(1, row["window_tokens"]) for row in case.rows)
    return Finding(
        "the window never binds",
        f"in {len(case.rows)} periods no agent waited for admission; the tokens inside were {most:.2f} of the room at "
        "most",
        "the pool holds the whole batch",
        "nothing: the run would have been the same without control",
    )


def churns(agents: Sequence[Row]) -> Finding | None:
    """Agents are paused again and again. `agents`: final rows of the whole run."""
    if not agents:
        return None
    worst = max(agents, key=lambda row: row["pauses"])
    mean = sum(row["pauses"] for row in agents) / len(agents)
    same = worst["pauses"] >= max(MANY_PAUSES, MANY_TIMES_MEAN * mean)
    if mean < CHURN_PAUSES and not same:
        return None
    longest = max(row["paused_seconds"] for row in agents)
    return Finding(
        "pauses churn",
        f"{mean:.1f} pauses an agent, {worst['pauses']} of {worst['agent_id']}; the longest time that one was paused "
        f"is {longest:.0f} s in all",
        "the same agents are called back first, again and again"
        if mean < CHURN_PAUSES
        else "agents outgrow the room soon after they are let in, or tools take longer than places are held",
        "another control.victim_order, or control.extensions.longest_pause_seconds"
        if mean < CHURN_PAUSES
        else "a lower control.admit_share, which leaves room to grow up to pause_share; a longer control.hold_seconds",
    )


TOKENS: tuple[Check, ...] = (unknown_pool, lost_prefixes, nothing_held, few_fill, backlogged, never_fills)
