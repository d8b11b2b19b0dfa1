"""The bench's tables: as plain rows of text, which the terminal and the page show alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from concur_batch.bench.paper import published
from concur_batch.bench.paper.aims import aims_of, table_errors
from concur_batch.bench.paper.cells import DECOMPOSED_ROW, LABELS, TABLES, Table
from concur_batch.bench.paper.outcome import decomposition
from concur_batch.bench.paper.results import Figure, Results, table_figure


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table to show. `part` is what it belongs to (see cells.PARTS), `notes` go below it."""

    part: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def sheets_of(results: Results, parts: Sequence[str], rows: Sequence[str]) -> list[Sheet]:
    """All tables of these parts that have something to show."""
    sheets: list[Sheet] = []
    for part in parts:
        if part in TABLES:
            sheets += [_table_sheet(results, TABLES[part], rows)]
        elif part == "decomposition":
            sheets += [_decomposition_sheet(results)]
    return [sheet for sheet in sheets if sheet.rows]


def error_sheet(results: Results, rows: Sequence[str], fitted: frozenset[tuple[str, str]]) -> Sheet:
    """Table 1's cells with their errors, fitted ones apart from those held out."""
    errors = table_errors(results, rows)
    lines = [
        (row, LABELS[system], "fitted" if (row, system) in fitted else "held out", f"{error:+.2f}")
        for (row, system), error in errors.items()
    ]
    notes = [
        f"{name}: median absolute log error {median(abs(error) for error in found):.2f} over {len(found)} cells"
        for name, found in (
            ("fitted", [error for cell, error in errors.items() if cell in fitted]),
            ("held out", [error for cell, error in errors.items() if cell not in fitted]),
            ("all", list(errors.values())),
        )
        if found
    ]
    title = "Errors of Table 1: the logarithm of simulated / paper"
    return Sheet("table1", title, ("row", "system", "cell", "log error"), lines, notes)


def aim_sheet(results: Results) -> Sheet:
    """The check list."""
    lines = [(aim.name, aim.verdict, aim.detail) for aim in aims_of(results)]
    return Sheet("aims", "What the figures are to show", ("aim", "met", "simulated"), lines)


def markdown(sheet: Sheet) -> str:
    """The table for a document."""
    lines = [sheet.columns, ["---"] * len(sheet.columns), *sheet.rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"### {sheet.title} (simulated)\n\n{table}\n" + "".join(f"\n* {note}" for note in sheet.notes) + "\n"


def _table_sheet(results: Results, table: Table, rows: Sequence[str]) -> Sheet:
    """Each cell: the median over the seeds, its spread, and the paper's figure."""
    lines: list[list[str]] = []
    for row in table.rows:
        figures = [table_figure(results, table, row, system) for system in table.systems]
        if row not in rows or not any(figures):
            continue
        cells = [_cell(figure, rates=table.rates) for figure in figures]
        others = [system for system in table.systems if system != "concur"]
        ratios = [] if table.rates else [", ".join(_ratio(results, row, system) for system in others)]
        lines.append([row, *cells, *ratios])
    columns = [_label(system) for system in table.systems]
    ratio = [] if table.rates else ["× CONCUR"]
    notes = published.ODDITIES.get(table.name, ())
    return Sheet(table.name, table.title, ("row", *columns, *ratio), lines, notes)


def _decomposition_sheet(results: Results) -> Sheet:
    lines = []
    for part, paper in published.DECOMPOSITION.items():
        cells = []
        for system in ("none", "concur"):
            figure = results.figure(DECOMPOSED_ROW, system, lambda outcome, part=part: decomposition(outcome)[part])  # type: ignore[misc]
            cells.append("" if figure is None else f"{figure.median:.1%}")
        lines.append([part, f"{paper:.1%}", *cells])
    title = f"Where the agents' time goes, {DECOMPOSED_ROW}"
    simulated = results.has([DECOMPOSED_ROW], ["none"])
    columns = ("part", "paper", "SGLang, simulated", "CONCUR, simulated")
    return Sheet("decomposition", title, columns, lines if simulated else [], published.ODDITIES["decomposition"])


def _label(system: str) -> str:
    return {**LABELS, "concur": "CONCUR"}.get(system, system.replace("u_high", "U_high").replace("u_low", "U_low"))


def _cell(figure: Figure | None, *, rates: bool) -> str:
    """`690 (683 to 702); paper 846`"""
    if figure is None:
        return ""
    shown = [f"{value:.1%}" if rates else f"{value:,.0f}" for value in (figure.median, figure.least, figure.most)]
    spread = f" ({shown[1]} to {shown[2]})" if figure.least != figure.most else ""
    paper = "–" if figure.paper is None else f"{figure.paper:.1%}" if rates else f"{figure.paper:,.0f}"
    return f"{shown[0]}{spread}; {paper}"


def _ratio(results: Results, row: str, system: str) -> str:
    if not results.has([row], [system, "concur"]):
        return "–"
    ratio = results.ratio(row, system)
    return "refused" if ratio is None else f"{ratio:.2f}"

