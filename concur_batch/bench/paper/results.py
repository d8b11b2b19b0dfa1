"""The outcomes side by side, over seeds and beside the paper's figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from concur_batch.bench.paper.cells import FIGURE_5_ROW, TABLES, Cell, Table
from concur_batch.bench.paper.outcome import Outcome, decomposition
from concur_batch.bench.same_work import same_work

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure over the seeds, beside the paper's (None: it gives none)."""

    median: float
    least: float
    most: float
    paper: float | None

    @property
    def log_error(self) -> float | None:
        """The natural logarithm of simulated / paper: 0.3 is 1.35 times, -0.3 is 0.74 times."""
        return log_error(self.median, self.paper)


def log_error(simulated: float, paper: float | None) -> float | None:
    """None where the paper gives no figure."""
    return None if paper is None else math.log(simulated / paper)


class Results:
    """All outcomes of a bench, by cell."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes: dict[tuple[str, str], list[Outcome]] = {}
        for outcome in sorted(outcomes, key=lambda outcome: outcome.cell):
            self._outcomes.setdefault((outcome.cell.row, outcome.cell.system), []).append(outcome)

    def of(self, row: str, system: str) -> list[Outcome]:
        """The outcomes of a row under a system, by seed; none where they were not simulated."""
        return self._outcomes.get((row, system), [])

    def has(self, rows: Sequence[str], systems: Sequence[str]) -> bool:
        """Whether all of these were simulated."""
        return all(self.of(row, system) for row in rows for system in systems)

    def figure(
        self, row: str, system: str, of: Callable[[Outcome], float], paper: float | None = None
    ) -> Figure | None:
        """Over the seeds; None where it was not simulated."""
        found = [of(outcome) for outcome in self.of(row, system)]
        return Figure(float(median(found)), min(found), max(found), paper) if found else None

    def seconds(self, row: str, system: str) -> float:
        """The median over the seeds. Raises ValueError where it was not simulated."""
        return float(median(outcome.seconds for outcome in self.of(row, system)))

    def hit_rate(self, row: str, system: str) -> float:
        """Of all tiers, the median over the seeds. Raises ValueError where it was not simulated."""
        return float(median(outcome.hit_rate for outcome in self.of(row, system)))

    def ratio(self, row: str, system: str) -> float | None:
        """How many times faster `concur` is, with the same seed, the median; None where the work was not the same."""
        if not (pairs := self._pairs(row, system)) or self.work_differences(row, system):
            return None
        return float(median(other.seconds / ours.seconds for other, ours in pairs))

    def work_differences(self, row: str, system: str) -> list[str]:
        """In what the work of a system differs from that of `concur` with the same seed: none if it is the same."""
        return [
            f"{row}, seed {other.cell.seed}, {system} (first) and concur (second): {line}"
            for other, ours in self._pairs(row, system)
            for line in same_work(other.work, ours.work).lines()
        ]

    def all_work_differences(self) -> list[str]:
        """Over every row and system."""
        return [line for row, system in self._outcomes for line in self.work_differences(row, system)]

    def rows(self) -> Iterator[Row]:
        """One row for each cell of each table, seed by seed: see `store`."""
        for table in TABLES.values():
            for row in table.rows:
                for system in table.systems:
                    for outcome in self.of(row, system):
                        yield _row(table, outcome)

    def series(self) -> Iterator[Row]:
        """The control periods of Figure 5's runs, and of any other of its row: see `store`."""
        for outcomes in self._outcomes.values():
            for outcome in outcomes:
                if outcome.cell.row == FIGURE_5_ROW:
                    names = {"row": outcome.cell.row, "system": outcome.cell.system, "seed": outcome.cell.seed}
                    yield from ({**names, **row} for row in outcome.series)

    def _pairs(self, row: str, system: str) -> list[tuple[Outcome, Outcome]]:
        ours = {outcome.cell.seed: outcome for outcome in self.of(row, "concur")}
        return [(other, ours[other.cell.seed]) for other in self.of(row, system) if other.cell.seed in ours]


def table_figure(results: Results, table: Table, row: str, system: str) -> Figure | None:
    """A cell of a table: seconds, or the hit rate of all tiers."""
    paper = table.paper.get(row, {}).get(system)
    return results.figure(row, system, _value(table), paper)


def _value(table: Table) -> Callable[[Outcome], float]:
    return (lambda outcome: outcome.hit_rate) if table.rates else (lambda outcome: outcome.seconds)


def _row(table: Table, outcome: Outcome) -> Row:
    cell: Cell = outcome.cell
    paper = table.paper.get(cell.row, {}).get(cell.system)
    return {
        "table": table.name,
        "row": cell.row,
        "system": cell.system,
        "seed": cell.seed,
        "simulated_seconds": outcome.seconds,
        "paper_seconds": None if table.rates else paper,
        "simulated_hit_rate": outcome.hit_rate,
        "paper_hit_rate": paper if table.rates else None,
        "log_error": log_error(_value(table)(outcome), paper),
        "device_hit_rate": outcome.device_hit_rate,
        "host_hit_rate": outcome.hit_rate - outcome.device_hit_rate,
        "looked_up_tokens": outcome.looked_up_tokens,
        "computed_tokens": outcome.computed_tokens,
        "recomputed_tokens": outcome.recomputed_tokens,
        "evicted_tokens": outcome.evicted_tokens,
        "retractions": outcome.retractions,
        "window_mean": outcome.window_mean,
        "increases": outcome.increases,
        "cuts": outcome.cuts,
        **{f"{part.replace(' ', '_')}_share": share for part, share in decomposition(outcome).items()},
    }
