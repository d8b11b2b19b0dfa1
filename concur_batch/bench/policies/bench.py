"""`make bench-policies`: every policy in every setting, simulated; the figures, and the tables of docs/policies.md.

Cells are kept in `runs/bench-policies/cells.jsonl`: what is there is not simulated again.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import track

from concur_batch.bench.policies.grid import RIVALS, Setting, settings, simulation
from concur_batch.bench.policies.table import Cells, print_tables
from concur_batch.bench.simulations import simulate

_OUT = Path("runs/bench-policies/cells.jsonl")
Key = tuple[str, str, str, int, str]


def key_of(rival: str, setting: Setting) -> Key:
    """Under which a cell is kept: a policy whose settings change is another."""
    chosen = RIVALS[rival]
    told = repr((chosen.control, chosen.hicache, chosen.unlimited))
    digest = hashlib.blake2b(told.encode(), digest_size=6).hexdigest()
    return rival, setting.deployment, setting.load, setting.seed, digest


def cell(rival: str, setting: Setting) -> dict[str, object]:
    """Simulate one."""
    found = simulate(simulation(setting, RIVALS[rival]))
    return {
        "key": key_of(rival, setting),
        "seconds": found.seconds,
        "recomputed_share": found.recomputed_share,
        "hit_rate": found.device_hit_rate,
        "retractions": found.retractions,
        "work": hashlib.blake2b(repr(found.work).encode(), digest_size=8).hexdigest(),
        "pauses": found.pauses,
        "longest_pause_seconds": found.longest_pause_seconds,
    }


def read_cells(path: Path) -> Cells:
    """Those that are kept; a torn last line is none."""
    cells: Cells = {}
    if path.exists():
        for line in path.read_bytes().splitlines():
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            cells[tuple(row.pop("key"))] = row
    return cells


def run(rivals: Iterable[str], chosen: Sequence[Setting], console: Console) -> Cells:
    """Simulate what is missing."""
    cells = read_cells(_OUT)
    missing = [(rival, setting) for setting in chosen for rival in rivals if key_of(rival, setting) not in cells]
    _OUT.parent.mkdir(parents=True, exist_ok=True)
    workers = min(len(missing), os.cpu_count() or 1)
    if missing:
        with (
            _OUT.open("ab") as file,
            ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool,
        ):
            tasks = [pool.submit(cell, rival, setting) for rival, setting in missing]
            done = as_completed(tasks)
            for task in track(done, "simulating", len(tasks), console=console, disable=not console.is_terminal):
                row = task.result()
                file.write(orjson.dumps(row) + b"\n")
                file.flush()
                cells[tuple(row.pop("key"))] = row  # type: ignore[arg-type]
    return cells


def main() -> None:
    """Simulate and print; `--seeds N`, `--unseen`."""
    seeds = int(sys.argv[sys.argv.index("--seeds") + 1]) if "--seeds" in sys.argv else 3
    console = Console(width=120)
    for unseen in (False, True) if "--all" in sys.argv else ("--unseen" in sys.argv,):
        chosen = settings(seeds, unseen=unseen)
        cells = run(RIVALS, chosen, console)
        print_tables(
            {
                (key[0], Setting(*key[1:4])): row
                for key, row in cells.items()
                if key == key_of(key[0], Setting(*key[1:4]))
            },
            chosen,
            console,
            unseen=unseen,
        )


if __name__ == "__main__":
    main()
