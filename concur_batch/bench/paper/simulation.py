"""One cell of the paper's bench: its workload, read and simulated."""

from __future__ import annotations

from pathlib import Path

from concur_batch.bench.batch import simulate_batch
from concur_batch.bench.paper.cells import DEEPSEEK_ROWS, SYSTEMS, Cell
from concur_batch.bench.paper.outcome import Outcome, outcome_of
from concur_batch.bench.paper.transfer import Growth, contexts, restoring
from concur_batch.bench.plan import EnginePlan
from concur_batch.bench.plans import Load, drawn_load
from concur_batch.workload.catalogue import Catalogue, load_catalogue
from concur_batch.workload.hardware import Hardware, hardware_of
from concur_batch.workload.loading import load
from concur_batch.workload.schema import Synthetic

DEEPSEEK_RANKS = 16
WORKLOADS = Path(__file__).parents[3] / "workloads" / "paper"
# Larger than any host: the pool is cut to what the host's memory holds, the same bytes in every row.
_HICACHE = "simulate.hicache={ratio: 32}"


def simulate(cell: Cell, catalogue: Catalogue | None = None) -> Outcome:
    """The cell's batch. `catalogue` is for a fit of its constants. Raises InputError where the workload cannot be
    used."""
    system = SYSTEMS[cell.system]
    section, hardware = read_row(cell.row, hicache=system.hicache, catalogue=catalogue)
    work = row_load(section, cell.seed)
    engines = {name: EnginePlan(config, hardware.cost) for name, config in hardware.engines.items()}
    return outcome_of(cell, work.plans, simulate_batch(work.plans, system.control, engines, work.shared_tokens))


def read_row(row: str, *, hicache: bool = False, catalogue: Catalogue | None = None) -> tuple[Synthetic, Hardware]:
    """A row's load and hardware. Raises InputError."""
    loaded = load(WORKLOADS / f"{row}.yaml", [_HICACHE] if hicache else [])
    replay = loaded.workload.replay
    assert replay is not None and replay.synthetic is not None, "the paper's loads are drawn"
    return replay.synthetic, hardware_of(loaded, catalogue=catalogue)


def growth() -> Growth:
    """Of the DeepSeek-V3 load; its latent KV, of 2 bytes a number, is whole on each of the ranks. Raises InputError."""
    section, hardware = read_row(DEEPSEEK_ROWS[-1])
    (config,) = hardware.engines.values()
    kv_bytes = 2 * load_catalogue().model("deepseek-v3").kv_values_per_token
    tokens = contexts(row_load(section, seed=0))
    return Growth(tokens, kv_bytes * DEEPSEEK_RANKS, restoring(hardware.cost, config))


def row_load(section: Synthetic, seed: int) -> Load:
    """Its agents under a seed of their own."""
    names = [f"agent-{number:03d}" for number in range(section.agents)]
    return drawn_load(section.model_copy(update={"seed": seed}), names)
