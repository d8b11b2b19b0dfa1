"""`concur bench paper`: every simulation, on all cores; tables, results.parquet and a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from concur_batch.bench.paper.calibration import FITTED
from concur_batch.bench.paper.cells import (
    FIXED_WINDOWS,
    INITIAL_WINDOW,
    PERIOD_SECONDS,
    REQUEST_CAP,
    Cell,
    cells_of,
)
from concur_batch.bench.paper.figures import plots_of
from concur_batch.bench.paper.outcome import Outcome
from concur_batch.bench.paper.page import render
from concur_batch.bench.paper.results import Results
from concur_batch.bench.paper.simulation import growth, simulate
from concur_batch.bench.paper.store import write_results, write_series
from concur_batch.bench.paper.tables import Sheet, aim_sheet, error_sheet, markdown, sheets_of
from concur_batch.trace.files import make_directory, replacing

_TITLE = "The tables of the CONCUR paper, simulated"


@dataclass(frozen=True, slots=True)
class Choice:
    """What to simulate: parts (cells.PARTS), rows (cells.ROWS), and how many seeds."""

    parts: Sequence[str]
    rows: Sequence[str]
    seeds: int


def run_bench(choice: Choice, out: Path, console: Console) -> Results:
    """Simulate, print the tables, and write results.parquet, series.parquet, tables.md and index.html into
    `out`.

    Raises InputError for a workload that cannot be used, and TraceError where `out` cannot be written.
    """
    make_directory(out)
    cells = cells_of(choice.parts, choice.rows, choice.seeds)
    results = Results(simulate_all(cells, console))
    grown = growth()
    sheets = sheets_of(results, grown, choice.parts, choice.rows)
    if "table1" in choice.parts:
        sheets.append(error_sheet(results, choice.rows, FITTED))
    sheets.append(aim_sheet(results))
    lead = _lead(choice, results)
    for line in lead:
        console.print(line, highlight=False, markup=False)
    for sheet in sheets:
        _print(sheet, console)
    write_results(out / "results.parquet", results.rows())
    write_series(out / "series.parquet", results.series())
    with replacing(out / "tables.md") as temporary:
        temporary.write_text("\n".join([*(f"{line}\n" for line in lead), *map(markdown, sheets)]), encoding="utf-8")
    with replacing(out / "index.html") as temporary:
        temporary.write_text(render(_TITLE, lead, sheets, plots_of(results, grown, choice.parts)), encoding="utf-8")
    console.print(f"{out}/results.parquet, {out}/index.html", soft_wrap=True, highlight=False)
    return results


def simulate_all(cells: Sequence[Cell], console: Console) -> list[Outcome]:
    """The outcomes, in no order."""
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(cells) or 1)) as workers:
        # The long ones first, so that no worker has one left at the end.
        futures = [workers.submit(simulate, cell) for cell in sorted(cells, key=_length, reverse=True)]
        done = track(as_completed(futures), "simulating", len(futures), console=console, transient=True)
        return [future.result() for future in done]


def _length(cell: Cell) -> bool:
    return cell.row.startswith("qwen")


def _lead(choice: Choice, results: Results) -> list[str]:
    """What all figures are, and the choices behind them."""
    windows = ", ".join(str(cap) for cap in FIXED_WINDOWS)
    lines = [
        "All seconds and rates here are simulated, by concur's own simulation of SGLang on H100s; the paper's figures "
        "stand beside them, after a semicolon.",
        f"Median (least to most) of {choice.seeds} loads drawn with other seeds. Open in the paper, chosen once for "
        f"all rows: request cap {REQUEST_CAP}, W from {INITIAL_WINDOW}, period {PERIOD_SECONDS:g} s, fixed windows "
        f"{windows}, HiCache's host pool as large as the host's memory allows.",
    ]
    differences = results.all_work_differences()
    if differences:
        lines.append("NOT the same work; ratios are refused where it differs:")
        lines += differences
    else:
        lines.append("Same work, agent by agent, in every row: turns, tokens in and out, tool calls, endings.")
    return lines


def _print(sheet: Sheet, console: Console) -> None:
    title = f"{sheet.title} (simulated)"
    table = Table(title=title, title_justify="left", min_width=len(title))
    for number, column in enumerate(sheet.columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in sheet.rows:
        table.add_row(*row)
    console.print(table)
    for note in sheet.notes:
        console.print(f"  {note}", highlight=False, markup=False)
