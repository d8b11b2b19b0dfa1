"""The tables of `make bench-real`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence

from concur_batch.bench.real_cells import REPETITIONS, Cell, stored
from concur_batch.bench.real_loads import RealLoad
from concur_batch.bench.same_work import same_work
from concur_batch.trace.reading import Run

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = (
    *("system", "seconds: median (least to most)", "device hit", "host hit", "recomputed tokens", "of prefill"),
    *("evicted tokens", "retractions", "pauses", "longest pause, s", "mean window", "increases, cuts", "same work"),
    "against the best cap",
)


def table(load: RealLoad) -> Iterator[str]:
    """Markdown: a row a system, with medians over its repetitions, the longest pause of all, and its seconds over those
    of the best cap of agents; then the window of each run."""
    cells = _measured(load)
    if not cells:
        return
    caps = _caps(cells)
    marks = {min(caps, key=caps.__getitem__): " (best)", max(caps, key=caps.__getitem__): " (worst)"} if caps else {}
    reference = Run(next(iter(cells.values()))[0].run_dir).agents_final().to_pylist()
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---" * len(_COLUMNS) + "|"
    for name, measured in cells.items():
        seconds = [cell.seconds for cell in measured]
        pauses = [_pauses(cell) for cell in measured]
        same = all(same_work(reference, Run(cell.run_dir).agents_final().to_pylist()).same for cell in measured)
        evicted = [cell.evicted_tokens for cell in measured if cell.evicted_tokens is not None]
        windows = [cell.window_mean for cell in measured if cell.window_mean is not None]
        yield " | ".join((
            f"| {name}{marks.get(name, '')}",
            f"{_seconds(measured):.0f} ({min(seconds):.0f} to {max(seconds):.0f}){' ¹' if 'HiCache' in name else ''}",
            f"{_median([cell.device_hit_rate for cell in measured]):.2f}",
            f"{_median([cell.host_hit_rate for cell in measured]):.2f}" if load.engine == "sglang" else "–",
            f"{_median([cell.recomputed_tokens for cell in measured]):,.0f}",
            f"{_median([cell.recomputed_tokens / cell.computed_tokens for cell in measured]):.0%}",
            f"{_median(evicted):,.0f}" if evicted else "not told",
            f"{_median([cell.retractions for cell in measured]):.0f}",
            f"{_median([len(each) for each in pauses]):.0f}",
            f"{max(itertools.chain(*pauses), default=0):.0f}",
            f"{_median(windows):.1f}" if windows else "–",
            f"{_median([cell.increases for cell in measured]):.0f}, {_median([cell.cuts for cell in measured]):.0f}",
            "yes" if same else "NO",
            f"{f'{_seconds(measured) / min(caps.values()):.2f}' if caps else '–'} |",
        ))  # fmt: skip
    yield ""
    for name, measured in cells.items():
        for cell in measured if name.endswith("concur") else ():
            span = f"W {min(cell.windows)} to {max(cell.windows)}"
            yield f"    {name:<16} {cell.seconds:4.0f} s  {span:<12} {_spark(cell.windows)}"


def means(loads: Sequence[RealLoad]) -> Iterator[str]:
    """A line an engine: of each system other than the caps, the geometric mean, over the loads in which it and a cap
    were measured, of its seconds over those of the best cap."""
    for engine, group in itertools.groupby(loads, lambda load: load.engine):
        of_engine = list(group)
        ratios: dict[str, list[float]] = {}
        for cells in map(_measured, of_engine):
            caps = _caps(cells)
            for name in cells.keys() - caps.keys() if caps else ():
                ratios.setdefault(name, []).append(_seconds(cells[name]) / min(caps.values()))
        told = [
            f"{name} {statistics.geometric_mean(of_name):.2f} ({len(of_name)} of {len(of_engine)} loads)"
            for name, of_name in sorted(ratios.items())
        ]
        if told:
            yield f"{engine}, seconds over the best cap's, geometric means: {', '.join(told)}"


def _measured(load: RealLoad) -> dict[str, list[Cell]]:
    """The cells by system, without systems that have none."""
    cells: dict[str, list[Cell]] = {}
    for system in load.systems:
        found = [stored(load, system, repetition) for repetition in range(REPETITIONS)]
        if measured := [cell for cell in found if cell is not None]:
            cells[system.name] = measured
    return cells


def _caps(cells: Mapping[str, Sequence[Cell]]) -> dict[str, float]:
    """The seconds of the caps of agents."""
    return {name: _seconds(measured) for name, measured in cells.items() if name.startswith("agent_cap")}


def _pauses(cell: Cell) -> list[float]:
    """How long each pause of the run was, in seconds."""
    paused = Run(cell.run_dir).table("turns", ["paused_seconds"])["paused_seconds"].to_pylist()
    return [seconds for seconds in paused if seconds > 0]


def _seconds(cells: Sequence[Cell]) -> float:
    return _median([cell.seconds for cell in cells])


def _median(values: Sequence[float]) -> float:
    return float(statistics.median(values))


def _spark(values: Sequence[int], width: int = 60) -> str:
    """A line of bars, each the mean of a stretch of the values, from 0 to their greatest."""
    width = min(width, len(values))
    edges = [round(number * len(values) / width) for number in range(width + 1)]
    means = [statistics.mean(values[left:right]) for left, right in itertools.pairwise(edges)]
    return "".join(_BARS[round(mean / max(values) * (len(_BARS) - 1))] for mean in means)
