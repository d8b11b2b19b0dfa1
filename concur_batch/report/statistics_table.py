"""The distributions of runs (see the module `statistics`) in the terminal, several side by side. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from concur_batch.report.columns import columns
from concur_batch.report.printable import one_line
from concur_batch.report.text import amount, histogram, share

Row = Mapping[str, Any]


def statistics_view(statistics: Row) -> Group:
    """Every table, each run's rows below each other where there are several."""
    runs = statistics["runs"]
    parts: list[RenderableType] = [_runs(runs)]
    for title, table in (
        ("how agents ended", _ends(runs)),
        ("distributions", _distributions(runs, statistics["distributions"])),
        ("tools", _tools(runs)),
        ("at least one right of k samples (pass@k)", _passes(runs)),
    ):
        if table.row_count:
            parts += [Text(), Text(title, style="bold"), table]
    return Group(*parts)


def _runs(runs: Sequence[Row]) -> Table:
    """A column a run."""
    table = columns(("", *(one_line(run["run"]) for run in runs)), ())
    lines: Mapping[str, Callable[[Row], str]] = {
        "status": lambda run: run["status"],
        "engine": lambda run: run["engine"] + (", and so are times" if run["simulated"] else ""),
        "policy": lambda run: run["policy"],
        "agents": lambda run: f"{run['ended']} of {run['agents']} ended",
        "reward": lambda run: "–" if run["reward_mean"] is None else f"{run['reward_mean']:.3f} over {run['rewarded']}",
        "turns": lambda run: f"{run['turns']:,}",
        "calls": lambda run: f"{run['tool_calls']:,}",
        "tokens in": lambda run: amount(run["input_tokens"]),
        "tokens out": lambda run: amount(run["output_tokens"]),
        "cached": lambda run: _of("cached", run),
        "recomputed": lambda run: _of("recomputed", run),
    }
    for name, told in lines.items():
        table.add_row(name, *(Text(one_line(str(told(run)))) for run in runs))
    return table


def _of(what: str, run: Row) -> str:
    tokens = run[f"{what}_tokens"]
    whole = "of input" if what == "cached" else "of prefill"
    return "not told" if tokens is None else f"{amount(tokens)}, {share(run[f'{what}_share'])} {whole}"


def _ends(runs: Sequence[Row]) -> Table:
    figures = ("agents", "share", "reward", "turns", "out")
    table = _table("status", runs, ("reason", *figures), figures)
    for run, name in _named(runs):
        for way in run["ends"]:
            table.add_row(
                way["status"],
                *name,
                Text(one_line(way["end_reason"])),
                str(way["agents"]),
                share(way["agents"] / run["ended"]),
                "–" if way["reward_mean"] is None else f"{way['reward_mean']:.3f}",
                f"{way['turns_median']:g}",
                amount(way["output_tokens_median"]),
            )
    return table


def _distributions(runs: Sequence[Row], distributions: Mapping[str, Sequence[Row | None]]) -> Table:
    figures = ("count", "p5", "p50", "p95", "max", "mean")
    table = _table("of", runs, (*figures, "p5 to p95"), figures)
    for figure, spreads in distributions.items():
        for (_, name), spread in zip(_named(runs), spreads, strict=True):
            if spread is not None:
                numbers = [_number(spread[mark]) for mark in figures[1:]]
                table.add_row(
                    Text(one_line(figure.replace("_", " "))),
                    *name,
                    f"{spread['count']:,}",
                    *numbers,
                    Text(histogram(spread["counts"]), style="green"),
                )
    return table


def _tools(runs: Sequence[Row]) -> Table:
    figures = ("calls", "errors", "timeouts", "crashes", "truncated", "p50 s", "p95 s", "all s", "queued s")
    table = _table("tool", runs, figures, figures)
    keys = ("errors", "timeouts", "crashes", "truncated")
    seconds = ("seconds_p50", "seconds_p95", "seconds", "queue_seconds")
    for tool in sorted({each["tool"] for run in runs for each in run["tools"]}):
        for run, name in _named(runs):
            for each in run["tools"]:
                if each["tool"] == tool:
                    counts = [f"{each[key]:,}" for key in ("calls", *keys)]
                    table.add_row(Text(one_line(tool)), *name, *counts, *(_number(each[key]) for key in seconds))
    return table


def _passes(runs: Sequence[Row]) -> Table:
    most = sorted({k for run in runs if run["pass_at"] for k in run["pass_at"]["at"]})
    table = _table("", runs, [f"@{k}" for k in most], [f"@{k}" for k in most])
    for run, name in _named(runs):
        found = run["pass_at"]
        if found is not None:
            left = f", {found['left_out']} agents say nothing" if found["left_out"] else ""
            cells = [f"{found['at'][k]:.3f}" if k in found["at"] else "–" for k in most]
            table.add_row(f"{found['tasks'][min(found['tasks'])]} tasks{left}", *name, *cells)
    return table


def _table(first: str, runs: Sequence[Row], names: Sequence[str], right: Sequence[str]) -> Table:
    """With a column for the run's name where there are several."""
    return columns((first, *(["run"] if len(runs) > 1 else []), *names), right)


def _named(runs: Sequence[Row]) -> Iterator[tuple[Row, list[Text]]]:
    """Each run, with the cell of its name where there are several."""
    for run in runs:
        yield run, [Text(one_line(run["run"]))] if len(runs) > 1 else []


def _number(value: float) -> str:
    """Three digits, whatever its size; whole numbers as they are."""
    if abs(value) >= 1000:
        return amount(value)
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"
