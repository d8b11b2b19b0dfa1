"""What `make bench-real` compares, and what it has measured: one file a cell. Pure but for those files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from concur_batch.trace.files import replacing

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "runs" / "bench-real"
REPETITIONS = 3


@dataclass(frozen=True, slots=True)
class System:
    """What is compared: a control, on a server with or without HiCache."""

    name: str
    control: dict[str, Any]
    hicache: bool = False


def _cap(policy: str, cap: int) -> System:
    return System(f"{policy} {cap}", {"policy": policy, "cap": cap})


_LAW = {"policy": "concur", "initial_window": 4}
_NONE = {"policy": "none"}
SYSTEMS: dict[str, tuple[System, ...]] = {
    "sglang": (
        System("none", _NONE),
        _cap("request_cap", 6),
        *(_cap("agent_cap", cap) for cap in (3, 5, 8)),
        System("concur", _LAW),
        System("HiCache, none", _NONE, hicache=True),
        System("HiCache, concur", _LAW, hicache=True),
    ),
    "vllm": (
        System("none", _NONE),
        _cap("request_cap", 8),
        *(_cap("agent_cap", cap) for cap in (6, 9, 16)),
        System("concur", _LAW),
    ),
}


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


def stored(engine: str, system: System, repetition: int) -> Cell | None:
    """The cell, if it is on disk and of the same workload."""
    try:
        cell = json.loads(_path(engine, system, repetition).read_text())
    except FileNotFoundError:
        return None
    return Cell(**cell) if cell["digest"] == digest_of(engine, system) else None


def store(cell: Cell, system: System) -> None:
    """Put a cell on disk, whole or not at all."""
    with replacing(_path(cell.engine, system, cell.repetition)) as temporary:
        temporary.write_text(json.dumps(asdict(cell)))


def workload_of(engine: str) -> Path:
    """The workload that an engine's cells run."""
    return ROOT / "workloads" / "bench_real" / f"{engine}.yaml"


def _path(engine: str, system: System, repetition: int) -> Path:
    directory = RESULTS / "cells"
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f"{engine}-{system.name.replace(', ', '-').replace(' ', '-')}-{repetition}.json"


def digest_of(engine: str, system: System) -> str:
    """Of all that a cell runs: one that was measured under another workload is measured again."""
    what = workload_of(engine).read_bytes() + json.dumps(asdict(system), sort_keys=True).encode()
    return blake2b(what, digest_size=8).hexdigest()
