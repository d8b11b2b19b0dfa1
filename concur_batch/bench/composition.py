"""Whether a window that never binds leaves the engine's batches as they are without one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from concur_batch.bench.batch import simulate_batch
from concur_batch.bench.load import write_workload
from concur_batch.bench.plan import EnginePlan, Plan, Turn
from concur_batch.bench.processes import watched_command
from concur_batch.simulator.config import EngineConfig
from concur_batch.trace.reading import Run
from concur_batch.workload.schema import AgentCap, NoControl

# A pool that the simulated batch's agents overfill by half, so that they wait, lose prefixes and are retracted.
_POOL_TOKENS = 60_000


@dataclass(frozen=True, slots=True)
class Composition:
    """Running requests at the engine over the control periods in which every agent was alive, `periods` of them."""

    periods: int
    mean: float
    p95: float


def composition(rows: Iterable[Mapping[str, Any]]) -> Composition:
    """From rows of the control table. Agents come and go outside these periods, sooner in one run than in another.

    Raises ValueError where there is no such period.
    """
    running = [
        row["running_requests"]
        for row in rows
        if row["running_requests"] is not None and row["pending"] == row["finished"] == 0
    ]
    if not running:
        raise ValueError("no control period in which every agent was alive")
    return Composition(len(running), float(np.mean(running)), float(np.quantile(running, 0.95)))


def simulated_batches(agents: int, turns: int) -> tuple[int, bool]:
    """The requests of a simulated batch, and whether they were scheduled at the very same moments and in the same order
    without a window and with one as large as the batch."""
    plans = [Plan(f"{number:04d}", tuple(_turn(number, turn) for turn in range(turns))) for number in range(agents)]
    engines = {"0": EnginePlan(EngineConfig(pool_tokens=_POOL_TOKENS, context_tokens=16_384))}
    free, wide = (
        simulate_batch(plans, control, engines, shared_tokens=100)
        for control in (NoControl(policy="none"), AgentCap(policy="agent_cap", cap=agents))
    )
    return len(free.scheduled), free.scheduled == wide.scheduled


def _turn(number: int, turn: int) -> Turn:
    return Turn(100 + (number * 31 + turn * 17) % 200, 20 + (number * 7 + turn) % 60, 0.1 + number * 13 % 20 / 10)


@dataclass(frozen=True, slots=True)
class Watched:
    """A run that was watched from outside: CPU seconds of its whole process tree, and what its controller counted."""

    run: Run
    cpu_seconds: float
    counts: Mapping[str, float]


def watched_run(directory: Path, agents: int, url: str, overrides: Mapping[str, Any]) -> Watched:
    """One `concur run`, with a controller that counts."""
    workload = write_workload(directory, agents, url, overrides)
    command = [sys.executable, "-m", "concur_batch.bench.metered_run", "run", str(workload), "--json"]
    summary, tree = watched_command("a run whose controller counts", command)
    run = Run(summary["run_dir"])
    (counts,) = {row["changes"] for row in run.table("control", columns=["changes"]).to_pylist()} - {None}
    return Watched(run, tree.samples[-1][1], json.loads(counts))
