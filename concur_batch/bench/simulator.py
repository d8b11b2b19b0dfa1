"""`make bench-simulator`: what simulated batches cost. Exit code 1: more than the targets.

Three parts: the 24 runs that a table of six rows and four systems takes, on two cores; up to 10,000 agents under each
policy; and one batch whose contexts are made of few turns or of many. Seconds are of CPU, which other processes of the
machine do not lengthen much; those of the clock are told beside them.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from concur_batch.bench.batch import simulate_batch
from concur_batch.bench.plan import EnginePlan, Plan, Turn
from concur_batch.simulator.config import EngineConfig, HiCacheConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.workload.schema import AnyControl

_CONTEXT_TOKENS = 16_000  # of an agent at its end
_SHARED_TOKENS = 500
_OUTPUT_SHARE = 0.2  # of a turn's tokens
_POOL_TOKENS = 1_500_000
_ROWS = ((256, 10), (256, 11), (256, 12), (256, 10), (256, 11), (256, 12))
_SIZES = (1250, 2500, 5000, 10_000)
_TURNS = 10
_TURN_COUNTS = (6, 12, 24, 48)
_CORES = 2
_MOST_TABLE_SECONDS = 20.0
_MOST_BATCH_SECONDS = 60.0
# A turn of the largest batch or of the longest agents may cost so many times one of the smallest or shortest.
_MOST_GROWTH = 2.0

_ENGINE = EnginePlan(
    EngineConfig(pool_tokens=_POOL_TOKENS), CostModel(load_seconds_per_token=3e-6, store_seconds_per_token=3e-6)
)
_TIERED = replace(_ENGINE, config=EngineConfig(pool_tokens=_POOL_TOKENS // 2, hicache=HiCacheConfig(2 * _POOL_TOKENS)))


@dataclass(frozen=True, slots=True)
class System:
    """A way to run a batch."""

    name: str
    control: AnyControl
    engine: EnginePlan = _ENGINE


def _control(**block: object) -> AnyControl:
    return TypeAdapter[AnyControl](AnyControl).validate_python(block)


SYSTEMS = (
    System("none", _control(policy="none")),
    System("request cap", _control(policy="request_cap", cap=64)),
    System("HiCache", _control(policy="none"), _TIERED),
    System("concur", _control(policy="concur")),
)
_POLICIES = (SYSTEMS[0], System("agent cap", _control(policy="agent_cap", cap=64)), SYSTEMS[3])


@dataclass(frozen=True, slots=True)
class Cost:
    """What simulating a batch took, in seconds of CPU, and what it was: `batch_seconds` are simulated."""

    system: str
    agents: int
    turns: int
    seconds: float
    batch_seconds: float

    @property
    def turn_microseconds(self) -> float:
        """For a turn of an agent."""
        return self.seconds / (self.agents * self.turns) * 1e6


def make_plans(agents: int, turns: int, seed: int) -> list[Plan]:
    """Agents whose contexts end near `_CONTEXT_TOKENS`, in so many turns, with tools of some seconds."""
    rng = random.Random(seed)
    turn_tokens = (_CONTEXT_TOKENS - _SHARED_TOKENS) / turns

    def turn() -> Turn:
        tokens = turn_tokens * rng.uniform(0.7, 1.3)
        return Turn(int(tokens * (1 - _OUTPUT_SHARE)), int(tokens * _OUTPUT_SHARE), rng.lognormvariate(0.5, 1.0))

    return [Plan(f"a{number}", tuple(turn() for _ in range(turns))) for number in range(agents)]


def measure(system: System, agents: int, turns: int, seed: int = 0) -> Cost:
    """Simulate one batch."""
    plans = make_plans(agents, turns, seed)
    start_seconds = time.process_time()
    result = simulate_batch(plans, system.control, {"0": system.engine}, _SHARED_TOKENS)
    return Cost(system.name, agents, turns, time.process_time() - start_seconds, result.seconds)


def table_runs() -> tuple[float, list[Cost]]:
    """The runs of a whole table on `_CORES` cores: seconds of the clock in all, and each run's cost."""
    runs = [(system, *row, seed) for seed, row in enumerate(_ROWS) for system in SYSTEMS]
    with ProcessPoolExecutor(_CORES) as pool:
        list(pool.map(abs, range(_CORES)))  # the processes are there
        start_seconds = time.perf_counter()
        costs = list(pool.map(measure, *zip(*runs, strict=True)))
        return time.perf_counter() - start_seconds, costs


def show(console: Console, title: str, costs: Sequence[Cost]) -> None:
    """A row a run."""
    table = Table(title=title, title_justify="left")
    for name in ("system", "agents", "turns each", "CPU seconds", "turns/s", "us a turn", "simulated seconds"):
        table.add_column(name, justify="left" if name == "system" else "right")
    for cost in costs:
        table.add_row(
            cost.system,
            f"{cost.agents:,}",
            str(cost.turns),
            f"{cost.seconds:.2f}",
            f"{cost.agents * cost.turns / cost.seconds:,.0f}",
            f"{cost.turn_microseconds:,.0f}",
            f"{cost.batch_seconds:,.0f}",
        )
    console.print(table)


def main() -> int:
    console = Console(width=120)
    failures = []
    clock_seconds, costs = table_runs()
    show(console, f"1. {len(costs)} runs on {_CORES} cores", costs)
    seconds = sum(cost.seconds for cost in costs) / _CORES
    console.print(
        f"{len(costs)} runs: {seconds:.1f} s of CPU on each of {_CORES} cores, {clock_seconds:.1f} s by the clock; "
        f"target {_MOST_TABLE_SECONDS:g} s\n"
    )
    if seconds > _MOST_TABLE_SECONDS:
        failures.append(f"{len(costs)} runs took {seconds:.1f} s on each core")

    for title, runs in (
        ("2. More agents", [[(system, agents, _TURNS) for agents in _SIZES] for system in _POLICIES]),
        ("3. More and shorter turns", [[(system, 256, turns) for turns in _TURN_COUNTS] for system in SYSTEMS]),
    ):
        grown = [[measure(*run) for run in group] for group in runs]
        show(console, title, [cost for group in grown for cost in group])
        for group in grown:
            growth = group[-1].turn_microseconds / group[0].turn_microseconds
            console.print(f"{group[0].system}: a turn of the last costs {growth:.2f} times one of the first")
            if growth > _MOST_GROWTH:
                failures.append(f"{title}, {group[0].system}: a turn costs {growth:.2f} times as much")
            if group[-1].seconds > _MOST_BATCH_SECONDS:
                failures.append(f"{title}, {group[-1].system}: {group[-1].seconds:.0f} s")
        console.print(f"targets: {_MOST_GROWTH:g} times, {_MOST_BATCH_SECONDS:g} s a batch\n")
    for failure in failures:
        console.print(f"missed: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
