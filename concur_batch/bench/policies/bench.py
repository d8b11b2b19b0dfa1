"""`make bench-policies`: every policy in every setting, simulated; prints and writes the tables of docs/policies.md.

Cells are kept in `runs/bench-policies/<digest of the code>/`: what is there is not simulated again.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from hashlib import blake2b
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import track

from concur_batch.bench.policies.grid import RIVALS, Setting, settings, simulation
from concur_batch.bench.policies.table import Cell, Cells, tables
from concur_batch.bench.simulations import simulate
from concur_batch.report.fairness import gini

_PACKAGE = Path(__file__).parents[2]
# What a cell depends on.
_SOURCES = ("agent/claim.py", "bench/agent.py", "bench/batch.py", "bench/policies", "control", "simulator")


def cell(name: str, setting: Setting) -> Cell:
    """Simulate one."""
    found = simulate(simulation(setting, RIVALS[name]))
    return {
        "policy": name,
        "setting": [setting.deployment, setting.load, setting.seed],
        "seconds": found.seconds,
        "recomputed_share": found.recomputed_share,
        "work": blake2b(repr(found.work).encode(), digest_size=8).hexdigest(),
        "pauses": found.pauses,
        "most_paused_seconds": found.most_paused_seconds,
        "waiting_gini": gini(found.waiting_seconds),
    }


def read_cells(path: Path) -> Cells:
    """Those that are kept; a torn last line is none."""
    cells: Cells = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        deployment, load, seed = row["setting"]
        cells[row["policy"], Setting(deployment, load, seed)] = row
    return cells


def run(chosen: Sequence[Setting], path: Path, console: Console) -> Cells:
    """Simulate what is missing."""
    cells = read_cells(path)
    missing = [(name, setting) for setting in chosen for name in RIVALS if (name, setting) not in cells]
    path.parent.mkdir(parents=True, exist_ok=True)
    if missing:
        workers = min(len(missing), os.cpu_count() or 1)
        with (
            path.open("ab") as file,
            ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool,
        ):
            tasks = {pool.submit(cell, *each): each for each in missing}
            for task in track(as_completed(tasks), "simulating", len(tasks), console=console, transient=True):
                row = cells[tasks[task]] = task.result()
                file.write(b"\n" + orjson.dumps(row))  # a line that a kill has torn ends here
                file.flush()
    return cells


def _digest() -> str:
    found = blake2b(digest_size=6)
    for source in _SOURCES:
        path = _PACKAGE / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            found.update(file.read_bytes())
    return found.hexdigest()


def main() -> None:
    """Simulate what is missing, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds: int = parser.parse_args().seeds
    console = Console(width=160)
    out = Path("runs/bench-policies") / _digest()
    lines: list[str] = []
    for title, unseen in (("Loads the policy was made with", False), ("Loads that nothing was tuned on", True)):
        chosen = settings(seeds, unseen=unseen)
        cells = run(chosen, out / "cells.jsonl", console)
        lines += [f"## {title}", "", *tables(cells, chosen), ""]
    (out / "tables.md").write_text("\n".join(lines))
    console.print("\n".join(lines), soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
