"""What `concur bench paper` simulates: the rows, the systems, and which of them each table shows. Pure.

Rows are workloads (workloads/paper/), systems are controls, with or without HiCache. No system has a setting of its own
for a row: what the paper leaves open is chosen once, here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from concur_batch.bench.paper import published
from concur_batch.bench.paper.published import Figures
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, NoControl, RequestCap

QWEN_ROWS = ("qwen3-32b-tp8", "qwen3-32b-tp4", "qwen3-32b-tp2")
DEEPSEEK_ROWS = ("deepseek-v3-16", "deepseek-v3-32", "deepseek-v3-40")
ROWS = (*QWEN_ROWS, *DEEPSEEK_ROWS)

# The choices that the paper leaves open.
REQUEST_CAP = 12
INITIAL_WINDOW = 32
PERIOD_SECONDS = 1.0
FIXED_WINDOWS = (30, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class System:
    """What is compared. Its `control` is the same in every row."""

    name: str
    control: AnyControl
    hicache: bool = False


def _concur(name: str, **thresholds: float) -> System:
    return System(
        name,
        Concur(policy="concur", initial_window=INITIAL_WINDOW, period_seconds=PERIOD_SECONDS, **thresholds),
    )


_NONE = NoControl(policy="none", period_seconds=PERIOD_SECONDS)
SYSTEMS: Mapping[str, System] = {
    system.name: system
    for system in (
        System("none", _NONE),
        System("request_cap", RequestCap(policy="request_cap", cap=REQUEST_CAP, period_seconds=PERIOD_SECONDS)),
        System("hicache", _NONE, hicache=True),
        _concur("concur"),
        *(_concur(f"u_high {value}", u_high=value) for value in (0.4, 0.6, 0.8)),
        *(_concur(f"u_low {value}", u_low=value) for value in (0.1, 0.3, 0.5)),
        *(
            System(f"window {cap}", AgentCap(policy="agent_cap", cap=cap, period_seconds=PERIOD_SECONDS))
            for cap in FIXED_WINDOWS
        ),
    )
}
FOUR = ("none", "request_cap", "hicache", "concur")
LABELS = {"none": "SGLang", "request_cap": f"request cap {REQUEST_CAP}", "hicache": "HiCache", "concur": "CONCUR"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the paper: its rows, its columns (systems), and the paper's figures, seconds or hit rates."""

    name: str
    title: str
    rows: Sequence[str]
    systems: Sequence[str]
    paper: Figures
    rates: bool = False
    """Whether its figures are hit rates, and not seconds."""


TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        Table("table1", "Table 1: seconds to finish the batch", ROWS, FOUR, published.TABLE_1),
        Table("table2", "Table 2: hit rate, all tiers", DEEPSEEK_ROWS, FOUR, published.TABLE_2, rates=True),
        Table(
            "windows",
            "Fixed agent windows against the adaptive one",
            ("qwen3-32b-tp2",),
            (*(f"window {cap}" for cap in FIXED_WINDOWS), "concur"),
            published.WINDOWS,
        ),
        Table(
            "u_high",
            "Threshold U_high, with U_low 0.2",
            QWEN_ROWS,
            ("u_high 0.4", "concur", "u_high 0.6", "u_high 0.8"),
            published.U_HIGH,
        ),
        Table(
            "u_low",
            "Threshold U_low, with U_high 0.5",
            QWEN_ROWS,
            ("u_low 0.1", "concur", "u_low 0.3", "u_low 0.5"),
            published.U_LOW,
        ),
    )
}
# What is shown beside those tables, and the runs that it is made of.
DECOMPOSED_ROW = "deepseek-v3-32"
FIGURE_5_ROW = "qwen3-32b-tp2"
PARTS: Mapping[str, Sequence[tuple[str, str]]] = {
    **{name: [(row, system) for row in table.rows for system in table.systems] for name, table in TABLES.items()},
    "decomposition": [*((row, "none") for row in DEEPSEEK_ROWS), (DECOMPOSED_ROW, "concur")],
    "figure1": [],
    "figure5": [(FIGURE_5_ROW, "none"), (FIGURE_5_ROW, "concur")],
}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One simulation."""

    row: str
    system: str
    seed: int


def cells_of(parts: Sequence[str], rows: Sequence[str], seeds: int) -> list[Cell]:
    """The simulations that these parts need of these rows, each once."""
    wanted = dict.fromkeys(pair for part in parts for pair in PARTS[part] if pair[0] in rows)
    return [Cell(row, system, seed) for row, system in wanted for seed in range(seeds)]
