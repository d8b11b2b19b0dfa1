"""`concur ls`: the runs of a directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pyarrow.compute as pc
import typer

from concur_batch.cli.drive import held
from concur_batch.cli.paging import page
from concur_batch.cli.refusal import refuse
from concur_batch.driver.past import seconds_of
from concur_batch.report.runs import broken_row, newest_first, run_row, runs_view
from concur_batch.trace.files import TraceError
from concur_batch.trace.journal import JOURNAL
from concur_batch.trace.manifest import MANIFEST
from concur_batch.trace.reading import Run

_DEFAULT = Path("runs")


def ls(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="Where the runs are; by default in runs/.", metavar="DIR…")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List runs, the newest first: status, agents ended, mean reward, time, policy, engine, bytes on disk."""
    found: dict[Path, dict[str, Any]] = {}
    for directory in directories or [_DEFAULT]:
        try:
            found |= {path.resolve(): _look(path) for path in _runs_in(directory)}
        except OSError as error:
            refuse(f"concur: {directory}: {error.strerror}; give a directory that runs are in", 2)
    rows = newest_first(found.values())
    if as_json:
        print(json.dumps({"runs": rows}))
    elif rows:
        page([runs_view(rows)])
    else:
        print(f"no runs in {', '.join(map(str, directories or [_DEFAULT]))}")


def _runs_in(directory: Path) -> Iterator[Path]:
    """The run directories right below this one, or this one itself. Those without a manifest count by their journal:
    something was to be recorded there."""
    if (directory / MANIFEST).exists():
        yield directory
        return
    for path in sorted(directory.iterdir()):
        if (path / MANIFEST).exists() or (path / JOURNAL).is_dir():
            yield path


def _look(path: Path) -> dict[str, Any]:
    size = {"size_bytes": _size_bytes(path)}
    try:
        run = Run(path)
        running = held(path)
        over = not running and run.manifest.get("status") not in ("starting", "running")
        seconds = run.manifest.get("seconds") if over else None
        rewards = run.table("agents", ["reward"], pc.field("final"))["reward"].to_pylist()
        row = run_row(path, run.manifest, running, rewards, seconds_of(run) if seconds is None else seconds)
    except TraceError as error:
        return broken_row(path, str(error)) | size
    except (AttributeError, TypeError):
        return broken_row(path, f"{MANIFEST} is not that of a run") | size
    return row | size


def _size_bytes(directory: Path) -> int:
    """Of all files in it; what goes away meanwhile counts for nothing."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(place) / name).lstat().st_size
            except FileNotFoundError:
                continue
    return total
