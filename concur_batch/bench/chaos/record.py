"""Reading what a run has left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from concur_batch.bench.chaos.comparison import Files, Ids, Record, TurnKey
from concur_batch.trace.intents import read_intents
from concur_batch.trace.reading import Run
from tools_env.catalogue import CATALOGUE

_ENDS = ("status", "end_reason", "failure_class", "answer", "reward", "verify_output", "seed", "turns", "tool_calls",
         "malformed_turns", "input_tokens", "output_tokens", "context_tokens")  # fmt: skip
_IDS = ("input_delta_ids", "output_ids")
_STEPS = {
    "turns": ("turn", "output_text", "finish_reason", "action", "input_tokens", "output_tokens", "context_tokens"),
    "tools": ("turn", "call", "name", "arguments", "status", "output", "exit_code", "truncated", "output_bytes"),
}
_KEYS = {"agents": ("agent_id", "attempt"), "turns": ("agent_id", "attempt", "turn"),
         "tools": ("agent_id", "attempt", "turn", "call")}  # fmt: skip
# Of a run that has ended, all that is not for its readers.
_LITTER = ("journal", "intents", "rejected", "workspaces/saved*", "workspaces/live-*", ".driver.lock", ".ending.lock",
           "**/.*.tmp")  # fmt: skip


def read_record(run_dir: Path) -> Record:
    """Of a run that has finished, as any reader of Parquet finds it."""
    rows = {table: _rows(run_dir, table) for table in _KEYS}
    final = [row for row in rows["agents"] if row["final"]]
    attempts = {(row["agent_id"], row["attempt"]) for row in final}
    doubled = _further(row["agent_id"] for row in final)
    doubled += sum(_further(tuple(row[name] for name in key) for row in rows[table]) for table, key in _KEYS.items())
    ids: dict[str, list[tuple[int, Ids]]] = defaultdict(list)
    steps: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for table, columns in _STEPS.items():
        for row in rows[table]:
            if (row["agent_id"], row["attempt"]) in attempts:
                steps[row["agent_id"]].append((table, *(row[name] for name in columns)))
                if table == "turns":
                    ids[row["agent_id"]].append((row["turn"], _ids(row)))
    return Record(
        ends={row["agent_id"]: tuple(row[name] for name in _ENDS) for row in final},
        ids={agent: tuple(of_turn for _, of_turn in sorted(turns)) for agent, turns in ids.items()},
        steps={agent: tuple(sorted(found, key=lambda step: step[:3])) for agent, found in steps.items()},
        workspaces={path.name: _files(path) for path in (run_dir / "workspaces" / "kept").glob("*")},
        turns=_turns(rows["turns"]),
        doubled=doubled,
    )


def read_turns(run_dir: Path) -> dict[TurnKey, Ids]:
    """The turns that are on record by now, in the journal too. Raises TraceError."""
    return _turns(Run(run_dir).table("turns", [*_KEYS["turns"], *_IDS]).to_pylist())


def undeclared(run_dir: Path, agents: int) -> list[str]:
    """The calls on record that may have effects, and of which no intent says that they were about to begin. None once
    all agents have ended: their intents go then. Raises TraceError."""
    run = Run(run_dir)
    calls = run.table("tools", [*_KEYS["tools"], "name", "started_seconds"]).to_pylist()
    declared: dict[tuple[Any, ...], float] = {}
    for row in read_intents(run_dir):  # after the calls: hosts may live on for a while
        for call in row["calls"]:
            key = (row["agent_id"], row["attempt"], row["turn"], call["call"])
            declared[key] = min(row["started_seconds"], declared.get(key, inf))
    if run.agents_final().num_rows == agents:
        return []
    return [
        f"{row['name']} {key}"
        for row in calls
        if CATALOGUE[row["name"]].has_effects
        and declared.get(key := tuple(row[name] for name in _KEYS["tools"]), inf) > row["started_seconds"]
    ]


def litter(run_dir: Path) -> list[str]:
    """What a finished run should not have left in its directory."""
    return sorted({str(path.relative_to(run_dir)) for pattern in _LITTER for path in run_dir.glob(pattern)})


def _rows(run_dir: Path, table: str) -> list[dict[str, Any]]:
    parts = sorted(map(str, (run_dir / table).glob("*.parquet")))
    found: pa.Table = ds.dataset(parts, format="parquet").to_table()
    return list(found.to_pylist())


def _turns(rows: Iterable[Mapping[str, Any]]) -> dict[TurnKey, Ids]:
    return {TurnKey(*(row[name] for name in _KEYS["turns"])): _ids(row) for row in rows}


def _ids(row: Mapping[str, Any]) -> Ids:
    return tuple(tuple(row[name]) for name in _IDS)


def _further(keys: Iterable[Hashable]) -> int:
    """How many are there beyond the first of each."""
    return sum(count - 1 for count in Counter(keys).values())


def _files(workspace: Path) -> Files:
    return {
        str(path.relative_to(workspace)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in workspace.rglob("*")
    }
