"""Figures as a person reads them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """0:07, 12:31 or 3:04:05."""
    whole = int(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def amount(number: float) -> str:
    """812, 45.1 k, 1.20 M, 3.40 G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def share(value: float | None, unknown: str = "–") -> str:
    """0.43, or what stands for one that is not known."""
    return unknown if value is None else f"{value:.2f}"


def window_width(places: int | None, tokens: int | None, footprint_tokens: int | None, unbounded: str = "∞") -> str:
    """A window: 12 agents, 1.2 M of 1.6 M tokens inside where it bounds those, or what stands for one without bound."""
    if tokens is not None:
        return f"{amount(footprint_tokens or 0)} of {amount(tokens)} tokens inside"
    return unbounded if places is None else str(places)


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars between zero and their greatest."""
    shown = values[-width:]
    top = max(shown, default=0) or 1
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * (len(_BARS) - 1)))] for value in shown)


def histogram(counts: Sequence[int]) -> str:
    """A bar a count, as high as its share of the greatest; nothing for none."""
    top = max(counts, default=0) or 1
    return "".join(_BARS[-(-count * len(_BARS) // top) - 1] if count else " " for count in counts)


def counted(number: int, what: str) -> str:
    """1 turn, 1,200 turns."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
