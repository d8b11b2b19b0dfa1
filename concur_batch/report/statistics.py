"""The distributions of runs: of their agents, turns and tools. From columns of figures alone, never of ids or texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from concur_batch.report.passes import passes
from concur_batch.trace.reading import Run

_BARS = 12
_WAITS = ("pending_seconds", "paused_seconds", "queue_seconds")
_AGENT_COLUMNS = ("agent_id", "task_id", "status", "end_reason", "failure_class", "reward", "turns", "tool_calls",
                  "pauses", "output_tokens", "context_tokens", "generation_seconds", "tool_seconds",
                  *_WAITS)  # fmt: skip
_TURN_COLUMNS = ("input_tokens", "output_tokens", "cached_device_tokens", "cached_host_tokens", "cached_storage_tokens",
                 "first_tokens", "recomputed_tokens", "rounding_tokens", "generation_seconds", *_WAITS)  # fmt: skip
_TOOL_COLUMNS = ("name", "status", "seconds", "queue_seconds", "truncated")


@dataclass(frozen=True, slots=True)
class _Columns:
    """What is read of a run: its final agents, and all its turns and calls."""

    manifest: Mapping[str, Any]
    agents: pa.Table
    turns: pa.Table
    tools: pa.Table

    def figures(self) -> dict[str, pa.ChunkedArray]:
        """What has a distribution, by name."""
        agents, turns = self.agents, self.turns
        return {
            "turns": agents["turns"],
            "tool_calls": agents["tool_calls"],
            "output_tokens": agents["output_tokens"],
            "context_tokens": agents["context_tokens"],
            "generation_seconds": agents["generation_seconds"],
            "tool_seconds": agents["tool_seconds"],
            "wait_seconds": _waits(agents),
            "pauses": agents["pauses"],
            "reward": agents["reward"].drop_null(),
            "turn_output_tokens": turns["output_tokens"],
            "turn_generation_seconds": turns["generation_seconds"],
            "turn_wait_seconds": _waits(turns),
        } | {
            f"{name}_call_seconds": self.tools.filter(pc.field("name") == name)["seconds"] for name in self.tool_names()
        }

    def tool_names(self) -> list[str]:
        return sorted(pc.unique(self.tools["name"]).to_pylist())


def statistics(runs: Sequence[Run]) -> dict[str, Any]:
    """One object: what there is of each run, and of each figure the `distributions`, run by run. Raises TraceError.

    Figures of agents are over the final rows, those of turns and calls over all that was done, in attempts that failed
    too. The bars of a figure stand for the same values in all runs: twelve equal steps from the lowest 5th to the
    highest 95th percentile, what lies beyond in the outer ones.
    """
    read = [_columns(run) for run in runs]
    figures = [columns.figures() for columns in read]
    names = list(dict.fromkeys(name for found in figures for name in found))
    return {
        "runs": [_run(columns) for columns in read],
        "distributions": {name: _spreads([found.get(name) for found in figures]) for name in names},
    }


def _columns(run: Run) -> _Columns:
    final = run.table("agents", columns=[*_AGENT_COLUMNS, "final"], filter=pc.field("final"))
    turns, tools = run.table("turns", columns=_TURN_COLUMNS), run.table("tools", columns=_TOOL_COLUMNS)
    return _Columns(run.manifest, final, turns, tools)


def _run(columns: _Columns) -> dict[str, Any]:
    manifest, agents, turns, tools = columns.manifest, columns.agents, columns.turns, columns.tools
    rewards = agents["reward"].drop_null()
    told = turns.filter(pc.is_valid(pc.field("cached_device_tokens")))
    cached = [_sum(told[f"cached_{tier}_tokens"]) for tier in ("device", "host", "storage")]
    computed = [_sum(told[f"{name}_tokens"]) for name in ("first", "recomputed", "rounding")]
    some = told.num_rows > 0
    return {
        "run": manifest["run"],
        "status": manifest["status"],
        "engine": manifest["workload"]["engine"]["kind"],
        "simulated": manifest["simulated"],
        "policy": manifest["workload"]["control"]["policy"],
        "agents": manifest["agents"],
        "ended": agents.num_rows,
        "reward_mean": pc.mean(rewards).as_py() if len(rewards) else None,
        "rewarded": len(rewards),
        "turns": turns.num_rows,
        "tool_calls": tools.num_rows,
        "input_tokens": _sum(turns["input_tokens"]),
        "output_tokens": _sum(turns["output_tokens"]),
        "cached_tokens": sum(cached) if some else None,
        "recomputed_tokens": computed[1] if some else None,
        "cached_share": _share(sum(cached), _sum(told["input_tokens"])),
        "recomputed_share": _share(computed[1], sum(computed)),
        "ends": _ends(agents),
        "tools": [_tool(name, tools.filter(pc.field("name") == name)) for name in columns.tool_names()],
        "pass_at": passes(agents.select(["task_id", "reward", "failure_class"]).to_pylist()),
    }


def _ends(agents: pa.Table) -> list[dict[str, Any]]:
    """How agents ended, the most frequent way first, with what is typical of each."""
    ways = agents.group_by(["status", "end_reason"]).aggregate([("agent_id", "count"), ("reward", "mean")])
    found = []
    for way in ways.to_pylist():
        of_way = (pc.field("status") == way["status"]) & (pc.field("end_reason") == way["end_reason"])
        rows = agents.filter(of_way)
        medians = {f"{name}_median": _quantiles(rows[name], 0.5)[0] for name in ("turns", "output_tokens")}
        found.append(
            {
                "status": way["status"],
                "end_reason": way["end_reason"],
                "agents": way["agent_id_count"],
                "reward_mean": way["reward_mean"],
                **medians,
            }
        )
    return sorted(found, key=lambda way: (-way["agents"], way["status"], way["end_reason"]))


def _tool(name: str, calls: pa.Table) -> dict[str, Any]:
    statuses = {row["values"]: row["counts"] for row in pc.value_counts(calls["status"]).to_pylist()}
    p50, p95 = _quantiles(calls["seconds"], 0.5, 0.95)
    return {
        "tool": name,
        "calls": calls.num_rows,
        "errors": statuses.get("error", 0),
        "timeouts": statuses.get("timeout", 0),
        "crashes": statuses.get("crashed", 0),
        "truncated": _sum(calls["truncated"]),
        "seconds_p50": p50,
        "seconds_p95": p95,
        "seconds": _sum(calls["seconds"]),
        "queue_seconds": _sum(calls["queue_seconds"]),
    }


def _spreads(of_runs: Sequence[pa.ChunkedArray | None]) -> list[dict[str, Any] | None]:
    """None for a run that has none of the figure."""
    marks = [_quantiles(values, 0.05, 0.5, 0.95) if values is not None and len(values) else None for values in of_runs]
    known = [mark for mark in marks if mark is not None]
    if not known:
        return [None] * len(of_runs)
    low, high = min(mark[0] for mark in known), max(mark[2] for mark in known)
    edges = np.linspace(low, high if high > low else low + 1, _BARS + 1)
    found: list[dict[str, Any] | None] = []
    for values, mark in zip(of_runs, marks, strict=True):
        if mark is None:
            found.append(None)
            continue
        assert values is not None, "it has marks"
        counts, _ = np.histogram(np.clip(values.to_numpy(), edges[0], edges[-1]), edges)
        found.append(
            {
                "count": len(values),
                "p5": mark[0],
                "p50": mark[1],
                "p95": mark[2],
                "max": pc.max(values).as_py(),
                "mean": pc.mean(values).as_py(),
                "edges": edges.tolist(),
                "counts": counts.tolist(),
            }
        )
    return found


def _waits(rows: pa.Table) -> pa.ChunkedArray:
    pending, paused, queued = (rows[name] for name in _WAITS)
    return pc.add(pc.add(pending, paused), queued)


def _quantiles(values: pa.ChunkedArray, *shares: float) -> list[float]:
    return [float(value) for value in pc.quantile(values, list(shares)).to_pylist()]


def _sum(values: pa.ChunkedArray) -> Any:
    return pc.sum(values).as_py() or 0


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None
