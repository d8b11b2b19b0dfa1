"""The plots of the bench's page, as inline SVG. Every simulated series says so in its legend or title."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from concur_batch.bench.paper import published
from concur_batch.bench.paper.cells import (
    DECOMPOSED_ROW,
    DEEPSEEK_ROWS,
    FIGURE_5_ROW,
    FOUR,
    LABELS,
    QWEN_ROWS,
    ROWS,
    TABLES,
    Table,
)
from concur_batch.bench.paper.outcome import decomposition
from concur_batch.bench.paper.page import Plot
from concur_batch.bench.paper.results import Results, table_figure
from concur_batch.bench.paper.transfer import Growth

# Text stays text, and the same figures give the same file.
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "concur", "font.size": 9, "axes.grid": True,
                             "grid.alpha": 0.3, "axes.axisbelow": True}  # fmt: skip
_COLOURS = {"none": "#9a9a9a", "request_cap": "#d08a2e", "hicache": "#4477aa", "concur": "#228833"}


def plots_of(results: Results, growth: Growth, parts: Sequence[str]) -> list[Plot]:
    """The plots of these parts, of what was simulated."""
    plots: list[Plot] = []
    if "table1" in parts and results.has(ROWS, FOUR):
        caption = "Table 1: seconds to finish the batch; bars simulated (median, spread over seeds), diamonds the paper"
        plots.append(Plot("table1", caption, _drawn(9, 3.4, lambda canvas: _bars(canvas, results, TABLES["table1"]))))
    if "table2" in parts and results.has(DEEPSEEK_ROWS, FOUR):
        caption = "Table 2: hit rate of all tiers; bars simulated, diamonds the paper"
        plots.append(Plot("table2", caption, _drawn(9, 3, lambda canvas: _bars(canvas, results, TABLES["table2"]))))
    for part in ("u_high", "u_low"):
        if part not in parts or not results.has(QWEN_ROWS, TABLES[part].systems):
            continue
        caption = f"{TABLES[part].title}: simulated (lines) and the paper (dashed)"
        plots.append(Plot(part, caption, _drawn(9, 2.8, lambda canvas, part=part: _lines(canvas, results, part))))  # type: ignore[misc]
    if "windows" in parts and results.has(TABLES["windows"].rows, TABLES["windows"].systems):
        caption = "Fixed agent windows against the adaptive one, simulated"
        plots.append(Plot("windows", caption, _drawn(6, 2.8, lambda canvas: _windows(canvas, results))))
    if "decomposition" in parts and results.has([DECOMPOSED_ROW], ["none", "concur"]):
        caption = f"Where the agents' time goes, {DECOMPOSED_ROW}, without waits for a place"
        plots.append(Plot("decomposition", caption, _drawn(8, 2, lambda canvas: _shares(canvas, results))))
    if "figure1" in parts:
        caption = (
            "Figure 1, simulated: contexts and KV over the steps, DeepSeek-V3; and the seconds until the KV of one to "
            f"eight requests of {published.REQUEST_TOKENS:,} tokens is on the device again"
        )
        plots.append(Plot("figure1", caption, _drawn(9, 2.8, lambda canvas: _growth(canvas, growth))))
    if "figure5" in parts and results.has([FIGURE_5_ROW], ["none", "concur"]):
        caption = f"Figure 5, simulated: {FIGURE_5_ROW}, against time and against agents finished"
        plots.append(Plot("figure5", caption, _drawn(9, 5, lambda canvas: _against_time(canvas, results))))
    return plots


def _drawn(width: float, height: float, draw: Callable[[Canvas], None]) -> str:
    with matplotlib.rc_context(_STYLE):
        canvas = Canvas(figsize=(width, height), layout="constrained")
        draw(canvas)
        text = StringIO()
        canvas.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]  # an inline SVG has no XML declaration


def _bars(canvas: Canvas, results: Results, table: Table) -> None:
    axes = canvas.subplots()
    width = 0.8 / len(FOUR)
    for number, system in enumerate(FOUR):
        for place, row in enumerate(table.rows):
            figure = table_figure(results, table, row, system)
            assert figure is not None, "it was simulated"
            x = place + (number - 1.5) * width
            label = f"{LABELS[system]}, simulated" if place == 0 else None
            spread = [[figure.median - figure.least], [figure.most - figure.median]]
            axes.bar(x, figure.median, width * 0.95, yerr=spread, color=_COLOURS[system], label=label, capsize=2)
            if figure.paper is not None:
                paper = "the paper" if place == number == 0 else None
                axes.plot(x, figure.paper, "D", color="black", markersize=4, label=paper)
    axes.set_xticks(range(len(table.rows)), table.rows)
    axes.set_ylabel("hit rate" if table.rates else "seconds")
    axes.legend(ncols=5, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.16))


def _lines(canvas: Canvas, results: Results, part: str) -> None:
    table = TABLES[part]
    default = {"u_high": 0.5, "u_low": 0.2}[part]
    places = [default if system == "concur" else float(system.split()[1]) for system in table.systems]
    panels: Sequence[Axes] = canvas.subplots(1, len(table.rows), sharey=True)
    for axes, row in zip(panels, table.rows, strict=True):
        axes.plot(places, [results.seconds(row, system) for system in table.systems], "o-", label="simulated")
        axes.plot(places, [table.paper[row][system] for system in table.systems], "D--", color="black", label="paper")
        if results.has([row], ["none"]):
            axes.axhline(results.seconds(row, "none"), color=_COLOURS["none"], label="SGLang, simulated")
        axes.set_title(row)
        axes.set_xlabel(part.replace("u_", "U_"))
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("seconds")
    panels[0].legend(fontsize=7)


def _windows(canvas: Canvas, results: Results) -> None:
    axes, table = canvas.subplots(), TABLES["windows"]
    (row,) = table.rows
    for place, system in enumerate(table.systems):
        colour = _COLOURS["concur" if system == "concur" else "none"]
        figure = table_figure(results, table, row, system)
        assert figure is not None, "it was simulated"
        spread = [[figure.median - figure.least], [figure.most - figure.median]]
        axes.bar(place, figure.median, 0.7, yerr=spread, color=colour, capsize=2)
    axes.plot(len(table.systems) - 1, table.paper[row]["concur"], "D", color="black", label="the paper")
    axes.set_xticks(range(len(table.systems)), ["adaptive" if s == "concur" else s for s in table.systems])
    axes.set_ylabel("seconds")
    axes.legend(fontsize=7)


def _shares(canvas: Canvas, results: Results) -> None:
    axes = canvas.subplots()
    bars = {"the paper": published.DECOMPOSITION}
    bars |= {
        f"{LABELS[system]}, simulated": decomposition(results.of(DECOMPOSED_ROW, system)[0])
        for system in ("none", "concur")
    }
    left = [0.0] * len(bars)
    colours = ("#ccbb44", "#4477aa", "#66ccee", "#cc3311")
    for part, colour in zip(published.DECOMPOSITION, colours, strict=True):
        widths = [shares[part] for shares in bars.values()]
        drawn = axes.barh(list(bars), widths, left=left, color=colour, label=part)
        axes.bar_label(drawn, [f"{width:.0%}" for width in widths], label_type="center", fontsize=8)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.legend(ncols=4, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, 1.25))


def _growth(canvas: Canvas, growth: Growth) -> None:
    tokens, found = growth.contexts, growth.restoring
    gigabyte_tokens = 1e9 / growth.kv_bytes_per_token
    steps, times = canvas.subplots(1, 2)
    steps.plot(range(1, len(tokens) + 1), tokens, label="context, simulated load")
    steps.axvspan(1, 10, color="#eeeeee", label="the ten steps of the paper's figure")
    steps.set_xlabel("step")
    steps.set_ylabel("tokens")
    steps.set_ylim(bottom=0)
    scales = (lambda tokens: tokens / gigabyte_tokens, lambda gigabytes: gigabytes * gigabyte_tokens)
    gigabytes = steps.secondary_yaxis("right", functions=scales)
    gigabytes.set_ylabel("latent KV, GB over 16 ranks")
    steps.legend(fontsize=7)
    requests = [each.requests for each in found]
    times.plot(requests, [each.transfer_seconds for each in found], "o-", label="from the host, simulated")
    times.plot(requests, [each.recompute_seconds for each in found], "s-", label="recomputed, simulated")
    times.set_xlabel("requests at once")
    times.set_ylabel("seconds")
    times.set_ylim(bottom=0)
    times.legend(fontsize=7)


def _against_time(canvas: Canvas, results: Results) -> None:
    panels = canvas.subplots(3, 2, sharex="col", sharey="row")
    fields = (("usage", "usage U (locked)"), ("hit_rate", "hit rate H"), ("window_after", "window W"))
    for system in ("none", "concur"):
        series = results.of(FIGURE_5_ROW, system)[0].series
        for column, x in enumerate(("seconds", "finished")):
            for (field, name), axes in zip(fields, panels[:, column], strict=True):
                points = [(row[x], row[field]) for row in series if row[field] is not None]
                label = f"{LABELS[system]}, simulated"
                if points:
                    axes.plot(*zip(*points, strict=True), lw=0.8, color=_COLOURS[system], label=label)
                axes.set_ylabel(name if column == 0 else "")
    panels[0, 0].legend(fontsize=7)
    panels[2, 0].set_xlabel("seconds")
    panels[2, 1].set_xlabel("agents finished")
