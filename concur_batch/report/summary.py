"""The figures of a run, from its tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from concur_batch.report.fairness import gini
from concur_batch.report.phases import leading_phase
from concur_batch.trace.reading import Run

_SUMS = (
    "input_tokens",
    "output_tokens",
    "cached_device_tokens",
    "cached_host_tokens",
    "cached_storage_tokens",
    "first_tokens",
    "recomputed_tokens",
    "rounding_tokens",
    "retractions",
    "generation_seconds",
    "tool_seconds",
    "tool_queue_seconds",
    "pending_seconds",
    "paused_seconds",
    "queue_seconds",
)


def summarize(run: Run) -> dict[str, Any]:
    """One flat object of figures, with units in the names; shares are None where their whole is zero, and sums where
    no row tells the figure.

    Agents, rewards and failures are over the final rows; agents without one count as unfinished. Turns, tokens and
    tools are all that was done, by agents that have not ended and in attempts that failed as well.
    """
    turns, tools = run.table("turns", columns=["agent_id", *_SUMS, "action"]), run.table("tools", columns=["agent_id"])
    final, control = run.agents_final(), run.table("control").sort_by("seconds")
    wanted, seconds = int(run.manifest["agents"]), float(run.manifest.get("seconds") or 0.0)
    sums: dict[str, Any] = {"turns": turns.num_rows, "tool_calls": tools.num_rows}
    sums |= {name: _sum(turns, name) for name in _SUMS}
    sums["malformed_turns"] = turns.filter(pc.field("action") == "malformed").num_rows
    sums["pauses"] = turns.filter(pc.field("paused_seconds") > 0).num_rows
    failures = Counter(name for name in _failed(final)["failure_class"].to_pylist())
    computed = sum(sums[name] or 0 for name in ("first_tokens", "recomputed_tokens", "rounding_tokens"))
    # The prompts of the turns that tell their cached tokens.
    looked_up = computed + sum(sums[f"cached_{tier}_tokens"] or 0 for tier in ("device", "host", "storage"))
    rewards = final["reward"].drop_null()
    return {
        "run": run.manifest["run"],
        "run_dir": str(run.path),
        "status": run.manifest["status"],
        "simulated": run.manifest["simulated"],
        "policy": run.manifest["workload"]["control"]["policy"],
        "seconds": round(seconds, 3),
        "agents": wanted,
        **{name: _count(final, name) for name in ("finished", "limit", "oversized", "cancelled", "failed")},
        "unfinished": wanted - final.num_rows,
        "failures": dict(failures),
        "rewarded": len(rewards),
        "reward_mean": pc.mean(rewards).as_py() if len(rewards) else None,
        "turns_median": float(pc.quantile(final["turns"], 0.5)[0].as_py()) if final.num_rows else None,
        **{name: round(value, 3) if isinstance(value, float) else value for name, value in sums.items()},
        "hit_rate": _share(sums["cached_device_tokens"], looked_up),
        "host_hit_rate": _share(sums["cached_host_tokens"], looked_up),
        "recomputed_share": _share(sums["recomputed_tokens"], computed),
        "output_tokens_per_second": _share(sums["output_tokens"], seconds),
        "turns_per_second": _share(sums["turns"], seconds),
        "loop_lag_p99_seconds": run.manifest.get("loop_lag_p99_seconds"),
        **_pauses(turns),
        **_window(control),
        "phase_seconds": phase_seconds(control),
    }


def phase_seconds(control: pa.Table) -> dict[str, float]:
    """How long each phase lasted, in seconds, from the control table in order of its periods.

    Where pools are in different phases, the one counts that matters most: middle before warmup before cooldown.
    """
    phases: dict[float, set[str]] = {}
    for moment, phase in zip(control["seconds"].to_pylist(), control["phase"].to_pylist(), strict=True):
        phases.setdefault(moment, set()).add(phase)
    lasted: dict[str, float] = {}
    before = 0.0
    for moment, found in phases.items():
        phase = leading_phase(found)
        lasted[phase] = round(lasted.get(phase, 0.0) + moment - before, 3)
        before = moment
    return lasted


def _pauses(turns: pa.Table) -> dict[str, Any]:
    """How often and for how long agents were paused, and how evenly they have waited: over those that have had a turn,
    each over all its turns."""
    waits = pc.add(pc.add(turns["pending_seconds"], turns["paused_seconds"]), turns["queue_seconds"])
    figures = {
        "agent": turns["agent_id"],
        "wait": waits,
        "pauses": pc.cast(pc.greater(turns["paused_seconds"], 0), "int64"),
    }
    agents = pa.table(figures).group_by("agent").aggregate([("wait", "sum"), ("pauses", "sum")])
    pauses = agents["pauses_sum"]
    return {
        "longest_pause_seconds": pc.max(turns["paused_seconds"]).as_py(),
        "pauses_mean": round(pc.mean(pauses).as_py(), 2) if len(pauses) else None,
        "pauses_max": pc.max(pauses).as_py(),
        "wait_gini": round(gini(agents["wait_sum"].to_pylist()), 3),
    }


def _window(control: pa.Table) -> dict[str, Any]:
    """Over all pools: a period's window is the sum of theirs, increases, cuts and stale periods count for each. Where
    tokens are bounded, `footprint_share` is what is inside over the room to admit."""
    periods = control.group_by("seconds").aggregate([("window_after", "sum")])
    windows = [window for window in periods["window_after_sum"].to_pylist() if window is not None]
    before = control["window_before"].to_pylist()
    steps = [after - old for old, after in zip(before, control["window_after"].to_pylist(), strict=True) if after]
    rooms = control.filter(pc.field("window_tokens") > 0).group_by("seconds")
    tokens = rooms.aggregate([("footprint_tokens", "sum"), ("window_tokens", "sum")])
    filled = pc.divide(pc.cast(tokens["footprint_tokens_sum"], pa.float64()), tokens["window_tokens_sum"])
    return {
        "pools": pc.count_distinct(control["pool"]).as_py(),
        "control_periods": periods.num_rows,
        "stale_periods": sum(control["stale"].to_pylist()),
        "window_min": min(windows, default=None),
        "window_mean": round(sum(windows) / len(windows), 2) if windows else None,
        "window_max": max(windows, default=None),
        "window_increases": sum(step > 0 for step in steps),
        "window_cuts": sum(step < 0 for step in steps),
        "footprint_share_mean": round(pc.mean(filled).as_py(), 4) if len(filled) else None,
        "footprint_share_max": round(pc.max(filled).as_py(), 4) if len(filled) else None,
        "pausing_periods": len(pc.unique(control.filter(pc.field("paused_in_period") > 0)["seconds"])),
        "evicted_tokens": _sum(control, "evicted_tokens"),
        "usage_max": pc.max(control["usage"]).as_py(),
        "occupancy_max": pc.max(control["occupancy"]).as_py(),
    }


def _failed(final: pa.Table) -> pa.Table:
    return final.filter(pc.field("status") == "failed")


def _count(final: pa.Table, status: str) -> int:
    return int(final.filter(pc.field("status") == status).num_rows)


def _sum(table: pa.Table, column: str) -> Any:
    """None where there are rows and none of them tells it."""
    return pc.sum(table[column]).as_py() if table.num_rows else 0


def _share(part: float | None, whole: float) -> float | None:
    return round(part / whole, 4) if whole and part is not None else None
