"""`make fit-paper`: fit calibrated constants of the catalogue to some cells of Table 1, and tell how far off all are.

Fitted are four constants to the twelve cells without control: SGLang as it is and HiCache, in all six rows. All of
CONCUR and of the request cap, nine cells, is held out: what control changes is predicted. One constant holds for every
row. The script changes nothing itself, but prints the `paper` values to put into simulator/catalogue.toml.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import mean, median

from rich.console import Console

from concur_batch.bench.paper.cells import FOUR, ROWS, Cell
from concur_batch.bench.paper.published import TABLE_1
from concur_batch.bench.paper.results import log_error
from concur_batch.bench.paper.simulation import simulate
from concur_batch.workload.catalogue import Catalogue, load_catalogue

CONSTANTS = ("prefill_efficiency", "link_efficiency", "network_efficiency", "host_memory_efficiency")
FITTED = frozenset((row, system) for row in ROWS for system in ("none", "hicache"))

# How far a constant is moved, up and down, while that helps; then less far.
_FACTORS = (2.0, 1.4, 1.15)
_SEED = 0

Pair = tuple[str, str]


def with_constants(catalogue: Catalogue, constants: Mapping[str, float]) -> Catalogue:
    """The catalogue with other constants for the paper."""
    return replace(catalogue, paper=replace(catalogue.paper, **constants))


def fit(workers: Executor, console: Console) -> dict[str, float]:
    """The constants with the least mean absolute log error over the fitted cells, one after the other moved and kept
    where that is better; from those of the catalogue."""
    fitted = load_catalogue().paper
    best = {name: float(getattr(fitted, name)) for name in CONSTANTS}
    least = _error(workers, best)
    console.print(f"{least:.3f} {_told(best)}", highlight=False)
    for factor in _FACTORS:
        moved = True
        while moved:
            moved = False
            for name in CONSTANTS:
                for times in (factor, 1 / factor):
                    tried = best | {name: min(1.0, best[name] * times)}
                    error = _error(workers, tried)
                    if error < least - 1e-3:
                        best, least, moved = tried, error, True
                        console.print(f"{least:.3f} {_told(best)}", highlight=False)
                        break
    return best


def errors(workers: Executor, constants: Mapping[str, float], pairs: list[Pair]) -> dict[Pair, float]:
    """The log error of each of these cells, of one seed."""
    catalogue = with_constants(load_catalogue(), constants)
    cells = [Cell(row, system, _SEED) for row, system in pairs]
    outcomes = workers.map(partial(simulate, catalogue=catalogue), cells)
    found = {}
    for (row, system), outcome in zip(pairs, outcomes, strict=True):
        error = log_error(outcome.seconds, TABLE_1[row][system])
        assert error is not None, "the paper gives it"
        found[row, system] = error
    return found


def _error(workers: Executor, constants: Mapping[str, float]) -> float:
    return mean(abs(error) for error in errors(workers, constants, sorted(FITTED)).values())


def _told(constants: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in constants.items())


def main() -> None:
    """Fit, and print the constants and the error of every cell."""
    console = Console(width=160)
    with ProcessPoolExecutor() as workers:
        constants = fit(workers, console)
        found = errors(workers, constants, [(row, system) for row in ROWS for system in FOUR if system in TABLE_1[row]])
    for name, value in constants.items():
        console.print(f"{name} = {value:.3g}", highlight=False)
    for (row, system), error in found.items():
        console.print(f"{row:<16} {system:<12} {'fitted' if (row, system) in FITTED else 'held out':<9} {error:+.2f}")
    for label, pairs in (("fitted", FITTED), ("held out", found.keys() - FITTED), ("all", found.keys())):
        middle = median(abs(found[pair]) for pair in pairs)
        console.print(f"{label}: median absolute log error {middle:.2f} over {len(pairs)} cells", highlight=False)


if __name__ == "__main__":
    main()
