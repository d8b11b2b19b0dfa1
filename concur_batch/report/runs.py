"""Runs as a list: what each is, and how far it came. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from concur_batch.report.columns import columns
from concur_batch.report.printable import one_line
from concur_batch.report.text import amount, duration

Row = Mapping[str, Any]

RUNNING, KILLED, BROKEN = "running", "killed", "broken"
# Those that go on with `concur resume`.
_RESUMABLE = (KILLED, "interrupted", "failed")


def run_row(path: Path, manifest: Row, held: bool, rewards: Sequence[float | None], seconds: float) -> dict[str, Any]:
    """A run by its manifest; `held` says that a process runs it. `rewards` are those of the agents that have ended,
    `seconds` how long it has been running."""
    workload = manifest.get("workload") or {}
    told = [reward for reward in rewards if reward is not None]
    return {
        "run": manifest.get("run", path.name),
        "run_dir": str(path),
        "status": _status(manifest.get("status"), held),
        "started_at": manifest.get("started_at"),
        "agents": manifest.get("agents"),
        "ended": len(rewards),
        "reward_mean": sum(told) / len(told) if told else None,
        "seconds": round(seconds, 3),
        "policy": (workload.get("control") or {}).get("policy"),
        "engine": (workload.get("engine") or {}).get("kind"),
        "model": (workload.get("model") or {}).get("name"),
        "error": None,
    }


def broken_row(path: Path, error: str) -> dict[str, Any]:
    """A directory that should be a run and cannot be read."""
    names = ("started_at", "agents", "ended", "reward_mean", "seconds", "policy", "engine", "model")
    return {"run": path.name, "run_dir": str(path), "status": BROKEN, **dict.fromkeys(names), "error": error}


def newest_first(rows: Iterable[Row]) -> list[Row]:
    """Those without a known beginning come last."""
    return sorted(rows, key=lambda row: (row["started_at"] or "", row["run"]), reverse=True)


def runs_view(rows: Sequence[Row]) -> Group:
    """The list in the terminal, and how those go on that have not finished."""
    table = columns(
        ("run", "started", "status", "ended", "reward", "time", "policy", "engine", "bytes"),
        right=("ended", "reward", "time", "bytes"),
    )
    for row in rows:
        table.add_row(
            Text(one_line(row["run"])),
            _cell(row["started_at"])[:16].replace("T", " "),
            row["status"],
            f"{_cell(row['ended'])}/{_cell(row['agents'])}",
            "–" if row["reward_mean"] is None else f"{row['reward_mean']:.3f}",
            "–" if row["seconds"] is None else duration(row["seconds"]),
            Text(_cell(row["policy"])),
            Text(_cell(row["engine"])),
            amount(row["size_bytes"]),
        )
    parts: list[RenderableType] = [table]
    parts += [Text(one_line(f"{row['run_dir']}: {row['error']}"), style="yellow") for row in rows if row["error"]]
    resumable = [row for row in rows if row["status"] in _RESUMABLE]
    if resumable:
        example = one_line(f"concur resume {resumable[0]['run_dir']}")
        parts.append(Text(f"{', '.join(sorted({row['status'] for row in resumable}))}: goes on with `{example}`"))
    return Group(*parts)


def _status(told: str | None, held: bool) -> str:
    """By the manifest, but for a run that nobody could say the end of."""
    if held:
        return RUNNING
    return KILLED if told in ("starting", "running") else told or BROKEN


def _cell(value: Any) -> str:
    return "–" if value is None else one_line(str(value))
