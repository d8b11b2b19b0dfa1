"""The tables of `make bench-policies`, as Markdown. All figures are simulated. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from concur_batch.bench.policies.grid import CAPS, LAW_WINDOWS, Setting, agents_of

Cell = dict[str, Any]
Cells = dict[tuple[str, Setting], Cell]

_LAWS = [f"concur {window}" for window in LAW_WINDOWS]
_CAPS = [f"cap {cap}" for cap in CAPS]
# A policy, or of several the one that is best or worst in a setting.
_SHOWN: Mapping[str, tuple[Sequence[str], Callable[..., Cell]]] = {
    "token_window": (["token_window"], min),
    "token_window, sessions": (["token_window, sessions"], min),
    "best cap": (_CAPS, min),
    "law, best W": (_LAWS, min),
    "law, worst W": (_LAWS, max),
    "ThunderAgent-like": (["ThunderAgent-like"], min),
    "prime-rl-like": (["prime-rl-like"], min),
    "HiCache": (["HiCache"], min),
    "unlimited": (["unlimited"], min),
}


def tables(cells: Cells, chosen: Sequence[Setting]) -> list[str]:
    """How much sooner than without control the batch ends, by setting and over all, and who had to wait for it."""
    return [*_gains(cells, chosen), "", *_against(cells, chosen), "", *_waits(cells, chosen)]


def gains(cells: Cells, name: str, chosen: Iterable[Setting]) -> list[float]:
    """Seconds without control by the policy's, of each setting."""
    return [cells["none", setting]["seconds"] / _cell(cells, name, setting)["seconds"] for setting in chosen]


def _cell(cells: Cells, name: str, setting: Setting) -> Cell:
    names, pick = _SHOWN[name]
    return pick((cells[each, setting] for each in names), key=lambda cell: cell["seconds"])


def _gains(cells: Cells, chosen: Sequence[Setting]) -> list[str]:
    lines = _header("simulated: gain over no control", "none, s", *_SHOWN)
    for label, members in _groups(chosen).items():
        none = geometric_mean(cells["none", setting]["seconds"] for setting in members)
        found = (geometric_mean(gains(cells, name, members)) for name in _SHOWN)
        lines.append(_row(label, f"{none:,.0f}", *(f"{gain:.2f}" for gain in found)))
    for label, figure in (("**geometric mean**", geometric_mean), ("**least**", min)):
        lines.append(_row(label, "", *(f"**{figure(gains(cells, name, chosen)):.2f}**" for name in _SHOWN)))
    return lines


def _against(cells: Cells, chosen: Sequence[Setting]) -> list[str]:
    """Ours against each, setting by setting: above 1, ours is faster."""
    lines = _header("simulated: token_window against", *(name for name in _SHOWN if name != "token_window"))
    ours = gains(cells, "token_window", chosen)
    ratios = {
        name: [our / their for our, their in zip(ours, gains(cells, name, chosen), strict=True)]
        for name in _SHOWN
        if name != "token_window"
    }
    for label, figure in (("geometric mean", geometric_mean), ("least", min), ("most", max)):
        lines.append(_row(label, *(f"{figure(each):.2f}" for each in ratios.values())))
    return lines


def _waits(cells: Cells, chosen: Sequence[Setting]) -> list[str]:
    lines = _header("simulated: means over the settings", *_SHOWN)
    columns = [[_cell(cells, name, setting) for setting in chosen] for name in _SHOWN]
    agents = [agents_of(setting) for setting in chosen]

    def mean(figure: Callable[[Cell, int], float]) -> list[float]:
        return [
            sum(figure(cell, count) for cell, count in zip(column, agents, strict=True)) / len(chosen)
            for column in columns
        ]

    paused = mean(lambda cell, _: cell["most_paused_seconds"] / cell["seconds"])
    rows = {
        "recomputed, of prefill": [f"{share:.0%}" for share in mean(lambda cell, _: cell["recomputed_share"])],
        "pauses an agent": [f"{pauses:.1f}" for pauses in mean(lambda cell, count: cell["pauses"] / count)],
        "most paused agent: share of the batch's time": [f"{share:.0%}" for share in paused],
        "Gini of the agents' waits": [f"{each:.2f}" for each in mean(lambda cell, _: cell["waiting_gini"])],
    }
    return [*lines, *(_row(label, *figures) for label, figures in rows.items())]


def _groups(chosen: Iterable[Setting]) -> dict[str, list[Setting]]:
    groups: dict[str, list[Setting]] = {}
    for setting in chosen:
        groups.setdefault(f"{setting.deployment}, {setting.load}", []).append(setting)
    return groups


def _header(*columns: str) -> list[str]:
    return [_row(*columns), _row("---", *("---:" for _ in columns[1:]))]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
