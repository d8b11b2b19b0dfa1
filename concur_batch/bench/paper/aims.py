"""What the simulated figures are to show, as the paper's do: a check list that is computed. Pure.

An aim that is missed is told, not forced: see docs/paper.md for the reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from concur_batch.bench.paper import published
from concur_batch.bench.paper.cells import DECOMPOSED_ROW, DEEPSEEK_ROWS, FIXED_WINDOWS, FOUR, QWEN_ROWS, ROWS, TABLES
from concur_batch.bench.paper.outcome import decomposition
from concur_batch.bench.paper.results import Results, table_figure

# How much slower counts as clearly worse; and how far above the highest of the seeds a hit rate counts as raised.
CLEARLY = 1.1
RAISED = 0.01
DECOMPOSITION_POINTS = 0.08
MEDIAN_LOG_ERROR = 0.3


@dataclass(frozen=True, slots=True)
class Aim:
    """`met` is None where the runs that it needs were not simulated."""

    name: str
    met: bool | None
    detail: str

    @property
    def verdict(self) -> str:
        return {True: "yes", False: "NO", None: "not simulated"}[self.met]


def aims_of(results: Results) -> list[Aim]:
    """The check list, in the order of the issue."""
    return [
        *_four_systems(results),
        *_thresholds(results),
        _fixed_windows(results),
        _decomposed(results),
        _close(results),
    ]


def _four_systems(results: Results) -> Iterator[Aim]:
    missing = not results.has(ROWS, FOUR)
    fastest = {row: min(FOUR, key=lambda system, row=row: results.seconds(row, system)) for row in ROWS if not missing}  # type: ignore[misc]
    yield _rows_aim("CONCUR is the fastest of the four in all six rows", missing, {
        row: (system == "concur", "CONCUR" if system == "concur" else system) for row, system in fastest.items()
    })  # fmt: skip
    rates = {row: {system: results.hit_rate(row, system) for system in FOUR} for row in ROWS if not missing}
    yield _rows_aim("the request cap does not raise the hit rate", missing, {
        row: (rate["request_cap"] <= none.most + RAISED, f"{none.median:.0%} → {rate['request_cap']:.0%}")
        for row, rate in rates.items()
        for none in [results.figure(row, "none", lambda outcome: outcome.hit_rate)]
        if none is not None
    })  # fmt: skip
    yield _rows_aim("HiCache has the highest hit rate of all tiers", missing, {
        row: (max(rate, key=rate.__getitem__) == "hicache", f"{rate['hicache']:.0%}, CONCUR {rate['concur']:.0%}")
        for row, rate in rates.items()
    })  # fmt: skip
    yield _rows_aim("and yet HiCache is slower than CONCUR", missing, {
        row: (slower > 1, f"{slower:.2f}x") for row in rates for slower in [_slower(results, row, "hicache")]
    })  # fmt: skip
    row = DEEPSEEK_ROWS[-1]
    if results.has([row], ["none"]):
        rate_none = results.hit_rate(row, "none")
        yield Aim("no control hits under 45 % at 40 DeepSeek agents", rate_none < 0.45, f"{rate_none:.0%}")
    else:
        yield Aim("no control hits under 45 % at 40 DeepSeek agents", None, "")


def _thresholds(results: Results) -> Iterator[Aim]:
    for system, least in (("u_high 0.8", CLEARLY), ("u_low 0.1", CLEARLY), ("u_low 0.5", CLEARLY), ("u_high 0.4", 1.0)):
        missing = not results.has(QWEN_ROWS, (system, "concur"))
        slower = {row: _slower(results, row, system) for row in QWEN_ROWS if not missing}
        yield _rows_aim(
            f"{system} is {'clearly ' if least > 1 else ''}worse than the default at TP8, TP4 and TP2",
            missing,
            {row: (times > least, f"{times:.2f}x") for row, times in slower.items()},
        )


def _fixed_windows(results: Results) -> Aim:
    name, (row,) = "the best fixed window is slower than the adaptive one", TABLES["windows"].rows
    systems = [f"window {cap}" for cap in FIXED_WINDOWS]
    if not results.has([row], [*systems, "concur"]):
        return Aim(name, None, "")
    best = min(systems, key=lambda system: results.seconds(row, system))
    times = _slower(results, row, best)
    return Aim(name, times > 1, f"{best}: {times:.2f}x")


def _decomposed(results: Results) -> Aim:
    name = f"the decomposition is within {DECOMPOSITION_POINTS * 100:.0f} points a part"
    found = results.of(DECOMPOSED_ROW, "none")
    if not found:
        return Aim(name, None, "")
    shares = [decomposition(outcome) for outcome in found]
    apart = {
        part: float(median(share[part] for share in shares)) - paper for part, paper in published.DECOMPOSITION.items()
    }
    met = all(abs(points) <= DECOMPOSITION_POINTS for points in apart.values())
    return Aim(name, met, ", ".join(f"{part} {points * 100:+.0f}" for part, points in apart.items()))


def _close(results: Results) -> Aim:
    name = f"the median absolute log error of Table 1's cells is under {MEDIAN_LOG_ERROR}"
    errors = table_errors(results, list(ROWS))
    if not results.has(ROWS, FOUR):
        return Aim(name, None, "")
    found = median(abs(error) for error in errors.values())
    return Aim(name, found < MEDIAN_LOG_ERROR, f"{found:.2f} over {len(errors)} cells")


def table_errors(results: Results, rows: Sequence[str]) -> dict[tuple[str, str], float]:
    """The log error of each cell of Table 1 that the paper gives and that was simulated."""
    errors: dict[tuple[str, str], float] = {}
    for row in rows:
        for system in FOUR:
            figure = table_figure(results, TABLES["table1"], row, system)
            if figure is not None and figure.log_error is not None:
                errors[row, system] = figure.log_error
    return errors


def _slower(results: Results, row: str, system: str) -> float:
    """How many times slower than `concur`, of the medians."""
    return results.seconds(row, system) / results.seconds(row, "concur")


def _rows_aim(name: str, missing: bool, rows: dict[str, tuple[bool, str]]) -> Aim:
    """An aim that is to be met in every row; its detail tells of each."""
    if missing:
        return Aim(name, None, "")
    detail = "; ".join(f"{row} {told}{'' if met else ' ✗'}" for row, (met, told) in rows.items())
    return Aim(name, all(met for met, _ in rows.values()), detail)
