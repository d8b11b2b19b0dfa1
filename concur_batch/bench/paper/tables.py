"""The bench's tables: as plain rows of text, which the terminal and the page show alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from concur_batch.bench.paper import published
from concur_batch.bench.paper.aims import aims_of, table_errors
from concur_batch.bench.paper.cells import DECOMPOSED_ROW, DEEPSEEK_ROWS, FIGURE_5_ROW, LABELS, TABLES, Table
from concur_batch.bench.paper.outcome import decomposition
from concur_batch.bench.paper.results import Figure, Results, table_figure
from concur_batch.bench.paper.transfer import Growth

_PHASE_COLUMNS = (("usage", ".2f"), ("occupancy", ".2f"), ("hit_rate", ".2f"), ("window_after", ".0f"))


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table to show. `part` is what it belongs to (see cells.PARTS), `notes` go below it."""

    part: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def sheets_of(results: Results, growth: Growth, parts: Sequence[str], rows: Sequence[str]) -> list[Sheet]:
    """All tables of these parts that have something to show."""
    sheets: list[Sheet] = []
    for part in parts:
        if part in TABLES:
            sheets += [_table_sheet(results, TABLES[part], rows)]
        elif part == "decomposition":
            sheets += [_decomposition_sheet(results)]
        elif part == "figure1":
            sheets += [_growth_sheet(growth)]
        elif part == "figure5":
            sheets += [_phases_sheet(results)]
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
    """The row that is compared with the paper's shares, and the other DeepSeek rows beside it."""
    runs = [(row, "none") for row in DEEPSEEK_ROWS] + [(DECOMPOSED_ROW, "concur")]
    lines = []
    for part, paper in published.DECOMPOSITION.items():
        figures = [
            results.figure(row, system, lambda outcome, part=part: decomposition(outcome)[part])  # type: ignore[misc]
            for row, system in runs
        ]
        lines.append([part, f"{paper:.1%}", *("" if figure is None else f"{figure.median:.1%}" for figure in figures)])
    columns = ("part", "paper", *(f"{LABELS[system]}, {row}" for row, system in runs))
    title = f"Where the agents' time goes; the paper's shares are compared with {DECOMPOSED_ROW}"
    simulated = results.has([DECOMPOSED_ROW], ["none"])
    return Sheet("decomposition", title, columns, lines if simulated else [], published.ODDITIES["decomposition"])


def _growth_sheet(growth: Growth) -> Sheet:
    """Figure 1: what one to eight requests take to be on the device again; the contexts in a note."""
    lines = [
        [f"{each.requests}", f"{each.transfer_seconds:.2f}", f"{each.recompute_seconds:.2f}"]
        for each in growth.restoring
    ]
    of_request = published.REQUEST_TOKENS * growth.kv_bytes_per_token / 1e9
    first, tenth, last = (growth.contexts[step - 1] for step in (1, 10, len(growth.contexts)))
    notes = (
        f"Contexts grow from {first:,.0f} tokens at the first step to {tenth:,.0f} at the tenth and {last:,.0f} at the "
        f"last ({len(growth.contexts)}).",
        f"KV of one request, all ranks together: {of_request:.2f} GB; paper {published.REQUEST_BYTES / 1e9:.2f} GB.",
        *published.ODDITIES["figure1"],
    )
    title = (
        f"Figure 1: seconds until requests of {published.REQUEST_TOKENS:,} tokens are on the device again, DeepSeek-V3"
    )
    return Sheet("figure1", title, ("requests at once", "from the host", "recomputed"), lines, notes)


def _phases_sheet(results: Results) -> Sheet:
    """Figure 5 by agents finished: means over the control periods of the first seed."""
    systems = ("none", "concur")
    if not results.has([FIGURE_5_ROW], systems):
        return Sheet("figure5", "", (), [])
    series = {system: results.of(FIGURE_5_ROW, system)[0].series for system in systems}
    agents = max(row["finished"] for rows in series.values() for row in rows)
    lines = []
    for part in range(5):
        low, high = agents * part // 5, agents * (part + 1) // 5
        line = [f"{low} to {high}"]
        for rows in series.values():
            inside = [row for row in rows if low <= row["finished"] < high]
            line += [_mean([row[name] for row in inside], digits) for name, digits in _PHASE_COLUMNS]
        lines.append(line)
    columns = [f"{LABELS[system]} {name}" for system in systems for name in ("U", "occupancy", "H", "W")]
    title = f"Figure 5: usage and hit rate by agents finished, {FIGURE_5_ROW}"
    return Sheet("figure5", title, ("agents finished", *columns), lines)


def _mean(values: Sequence[float | None], digits: str) -> str:
    told = [value for value in values if value is not None]
    return f"{mean(told):{digits}}" if told else "–"


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
