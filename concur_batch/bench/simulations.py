"""Simulated batches side by side, each in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from concur_batch.bench.batch import simulate_batch
from concur_batch.bench.plan import EnginePlan
from concur_batch.bench.plans import Load
from concur_batch.bench.prediction import Prediction, predict
from concur_batch.control.governor import MakePolicy
from concur_batch.control.policies import make_policy
from concur_batch.workload.schema import AnyControl


@dataclass(frozen=True, slots=True)
class Simulation:
    """One batch that is to be simulated."""

    load: Load
    control: AnyControl
    engines: Mapping[str, EnginePlan]
    make: MakePolicy = make_policy


def simulate(simulation: Simulation) -> Prediction:
    """One batch, here. Raises RuntimeError where its agents wait for ever."""
    load = simulation.load
    return predict(
        simulate_batch(load.plans, simulation.control, simulation.engines, load.shared_tokens, simulation.make)
    )


def simulate_all(simulations: Sequence[Simulation]) -> Iterator[Prediction]:
    """All of them, in their order, on as many cores as there are. Raises RuntimeError as `simulate` does."""
    workers = min(len(simulations), os.cpu_count() or 1)
    if workers == 1:
        yield from map(simulate, simulations)
        return
    with ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.map(simulate, simulations)
