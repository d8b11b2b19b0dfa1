"""Runs as a list: what a status means, and rows that lack something."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from concur_batch.report.runs import broken_row, newest_first, run_row, runs_view

Row = dict[str, Any]

MANIFEST: Row = {
    "run": "demo-1", "status": "finished", "agents": 4, "started_at": "2026-11-30T01:31:11Z",
    "workload": {"control": {"policy": "concur"}, "engine": {"kind": "sglang"}, "model": {"name": "m"}},
}  # fmt: skip


def row(path: str = "runs/demo-1", held: bool = False, rewards: tuple[float | None, ...] = (), **manifest: Any) -> Row:
    return run_row(Path(path), MANIFEST | manifest, held, rewards, 75.25) | {"size_bytes": 1_200_000}


def shown(*rows: Row) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=1000, color_system=None).print(runs_view(rows), highlight=False)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("told", "held", "status"),
    [
        ("running", True, "running"),
        ("interrupted", True, "running"),  # `concur resume` has begun
        ("running", False, "killed"),
        ("starting", False, "killed"),
        ("interrupted", False, "interrupted"),
        ("finished", False, "finished"),
        (None, False, "broken"),
    ],
)
def test_status(told: str | None, held: bool, status: str) -> None:
    assert row(held=held, status=told)["status"] == status


def test_a_row_tells_what_is_known() -> None:
    line = shown(row(rewards=(1.0, None, 0.5)))[1]
    assert line.split() == [
        "demo-1", "2026-11-30", "01:31", "finished", "3/4", "0.750", "1:15", "concur", "sglang", "1.2", "M"
    ]  # fmt: skip


def test_what_goes_on_is_told_with_its_command_and_what_is_broken_with_its_reason() -> None:
    broken = broken_row(Path("runs/b\x1b"), "broken manifest\nx") | {"size_bytes": 0}
    lines = shown(row(), row("runs/k", status="running"), row("runs/i", status="interrupted"), broken)
    assert lines[4].split() == ["b␛", "–", "broken", "–/–", "–", "–", "–", "–", "0"]
    assert lines[5] == "runs/b␛: broken manifest x"
    assert lines[6] == "interrupted, killed: goes on with `concur resume runs/k`"
    assert len(shown(row())) == 2


def test_the_newest_first_and_those_of_no_known_time_last() -> None:
    rows = [row(run="old", started_at="2026-01-01T00:00:00Z"), row(run="none", started_at=None), row(run="new")]
    assert [found["run"] for found in newest_first(rows)] == ["new", "old", "none"]
