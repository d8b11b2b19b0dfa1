"""The bench's page: one HTML file with all tables and plots, which needs nothing from anywhere. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from concur_batch.bench.paper.tables import Sheet

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .6em 0; font-size: 13px }
th, td { border-bottom: 1px solid #ddd; padding: .25em .7em; text-align: right }
th:first-child, td:first-child { text-align: left }
td.no { color: #b00020; font-weight: bold } td.long { text-align: left }
p.note, figcaption { color: #555; font-size: 13px; margin: .2em 0 }
figure { margin: 1.2em 0 } svg { max-width: 100%; height: auto }
p.simulated { background: #fff4ce; padding: .5em 1em }
"""


@dataclass(frozen=True, slots=True)
class Plot:
    """`part` is what it belongs to (see cells.PARTS); `svg` has no reference to anything outside."""

    part: str
    caption: str
    svg: str


def render(title: str, lead: Sequence[str], sheets: Sequence[Sheet], plots: Sequence[Plot]) -> str:
    """The page: the lead, and each part's tables and plots in the order of the tables."""
    blocks: list[str] = []
    waiting = list(plots)
    for sheet in sheets:
        blocks.append(_table(sheet))
        blocks += [_figure(plot) for plot in waiting if plot.part == sheet.part]
        waiting = [plot for plot in waiting if plot.part != sheet.part]
    blocks += [_figure(plot) for plot in waiting]
    head, *others = lead
    paragraphs = [f'<p class="simulated">{escape(head)}</p>', *(f"<p>{escape(line)}</p>" for line in others)]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n" + "\n".join([*paragraphs, *blocks]) + "\n</html>\n"
    )


def _table(sheet: Sheet) -> str:
    heads = "".join(f"<th>{escape(column)}</th>" for column in sheet.columns)
    rows = "\n".join(f"<tr>{''.join(_cell(text) for text in row)}</tr>" for row in sheet.rows)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in sheet.notes)
    return f"<h2>{escape(sheet.title)} (simulated)</h2>\n<table><tr>{heads}</tr>\n{rows}</table>\n{notes}"


def _cell(text: str) -> str:
    kind = ' class="no"' if text == "NO" else ' class="long"' if len(text) > 40 else ""
    return f"<td{kind}>{escape(text)}</td>"


def _figure(plot: Plot) -> str:
    return f"<figure>{plot.svg}<figcaption>{escape(plot.caption)}</figcaption></figure>"
