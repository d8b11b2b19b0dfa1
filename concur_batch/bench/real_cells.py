"""What `make bench-real` has measured: one file a cell."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from concur_batch.bench.real_loads import RealLoad, System
from concur_batch.trace.files import replacing

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "runs" / "bench-real"
REPETITIONS = 3


@dataclass(frozen=True, slots=True)
class Cell:
    """What was measured. `seconds` from the first generation to the last turn's end; `digest` is of what was run."""

    engine: str
    system: str
    repetition: int
    digest: str
    run_dir: str
    seconds: float
    device_hit_rate: float
    host_hit_rate: float
    input_tokens: int
    computed_tokens: int
    recomputed_tokens: int
    evicted_tokens: int | None
    retractions: int
    window_mean: float | None
    increases: int
    cuts: int
    windows: tuple[int, ...]
    load: str = ""


def stored(load: RealLoad, system: System, repetition: int) -> Cell | None:
    """The cell, if it is on disk and of the same workload."""
    try:
        cell = json.loads(_path(load, system, repetition).read_text())
    except FileNotFoundError:
        return None
    return Cell(**cell) if cell["digest"] == digest_of(load, system) else None


def store(cell: Cell, load: RealLoad, system: System) -> None:
    """Put a cell on disk, whole or not at all."""
    with replacing(_path(load, system, cell.repetition)) as temporary:
        temporary.write_text(json.dumps(asdict(cell)))


def workload_of(load: RealLoad) -> Path:
    """The file that its cells run."""
    return ROOT / "workloads" / "bench_real" / f"{load.workload}.yaml"


def _path(load: RealLoad, system: System, repetition: int) -> Path:
    directory = RESULTS / "cells"
    directory.mkdir(parents=True, exist_ok=True)
    parts = [load.engine, load.name, system.name, str(repetition)]
    return directory / f"{'-'.join(re.sub('[, ]+', '-', part) for part in parts if part)}.json"


def digest_of(load: RealLoad, system: System) -> str:
    """Of the workload and the system, not of the code: one that was measured under others is measured again."""
    settings = "".join(load.settings).encode()
    what = workload_of(load).read_bytes() + settings + json.dumps(asdict(system), sort_keys=True).encode()
    return blake2b(what, digest_size=8).hexdigest()
