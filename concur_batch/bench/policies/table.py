"""The tables of `make bench-policies`. All figures are simulated. Pure but for printing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from concur_batch.bench.policies.grid import CAPS, LAW_WINDOWS, Setting

Cells = dict[Any, dict[str, Any]]
Rows = Mapping[tuple[str, Setting], Mapping[str, Any]]

_LAWS = [f"concur {window}" for window in LAW_WINDOWS]
_CAPS = [f"cap {cap}" for cap in CAPS]


def seconds_of(rows: Rows, name: str, setting: Setting) -> float:
    """Of a policy, or of the best or worst of several."""
    of: Callable[[str], float] = lambda rival: rows[rival, setting]["seconds"]  # noqa: E731
    match name:
        case "best cap":
            return min(map(of, _CAPS))
        case "law, best W":
            return min(map(of, _LAWS))
        case "law, worst W":
            return max(map(of, _LAWS))
        case _:
            return of(name)


SHOWN = (
    "token_window",
    "best cap",
    "law, best W",
    "law, worst W",
    "thunder-like",
    "prime-like",
    "hicache",
    "unlimited",
)


def geometric_mean(values: Iterable[float]) -> float:
    """Of values above zero."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def gains(rows: Rows, name: str, chosen: Sequence[Setting]) -> list[float]:
    """How much sooner than without control the batch ends, by setting."""
    return [rows["none", setting]["seconds"] / seconds_of(rows, name, setting) for setting in chosen]


def print_tables(rows: Rows, chosen: Sequence[Setting], console: Console, *, unseen: bool) -> None:
    """Gains over no control: by deployment and load, and over all."""
    table = Table(
        title=f"simulated: gain over no control{', loads nothing was tuned on' if unseen else ''}", title_justify="left"
    )
    for column in ("deployment", "load", "none, s", *SHOWN):
        table.add_column(column, justify="left" if column in ("deployment", "load") else "right")
    groups: dict[tuple[str, str], list[Setting]] = {}
    for setting in chosen:
        groups.setdefault((setting.deployment, setting.load), []).append(setting)
    for (deployment, load), members in groups.items():
        none = geometric_mean(rows["none", setting]["seconds"] for setting in members)
        cells = [f"{geometric_mean(gains(rows, name, members)):.2f}" for name in SHOWN]
        table.add_row(deployment, load, f"{none:,.0f}", *cells)
    table.add_section()
    table.add_row("all", "geometric mean", "", *(f"{geometric_mean(gains(rows, name, chosen)):.3f}" for name in SHOWN))
    table.add_row("all", "least", "", *(f"{min(gains(rows, name, chosen)):.2f}" for name in SHOWN))
    console.print(table)
