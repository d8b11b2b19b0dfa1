"""A running batch in the terminal: a live panel, or a line now and then where there is no terminal."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from concur_batch.driver.snapshot import Snapshot
from concur_batch.report.text import amount, duration, share, sparkline, window_width

_SPARK_WIDTH = 40
_LINE_SECONDS = 5.0


class View(Protocol):
    """What the driver talks to while it runs."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def show(self, snapshot: Snapshot) -> None:
        """The batch as it is now."""
        ...

    def note(self, text: str) -> None:
        """One line of news."""
        ...


class LiveView:
    """A panel that is redrawn in place. `title` says what runs; a simulated engine is named as such in it."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._windows: deque[float] = deque(maxlen=_SPARK_WIDTH)
        self._last: Snapshot | None = None
        self._live = Live(console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        self._live.update(Panel(Text("starting …", style="dim"), title=self._title, title_align="left"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, snapshot: Snapshot) -> None:
        control = snapshot.control
        told = "footprint_tokens" if control.get("window_tokens") is not None else "window"
        width = control.get(told)
        self._windows.append(float(width if width is not None else control.get("places_held") or 0))
        self._live.update(self._render(snapshot))
        self._last = snapshot

    def note(self, text: str) -> None:
        self._live.console.print(Text(text, style="yellow"))

    def _render(self, snapshot: Snapshot) -> RenderableType:
        control, sums = snapshot.control, snapshot.sums
        rates = _rates(self._last, snapshot)
        unknown = "not told" if sums.get("input_tokens") else "–"
        progress = Table.grid(padding=(0, 2), expand=True)
        progress.add_column(ratio=1)
        progress.add_column(justify="right")
        eta = snapshot.eta_seconds
        progress.add_row(
            ProgressBar(total=max(1, snapshot.agents), completed=snapshot.ended),
            f"{snapshot.ended}/{snapshot.agents} ended   {duration(snapshot.seconds)}"
            f"   ETA {'–' if eta is None else duration(eta)}",
        )
        lines = Table.grid(padding=(0, 2))
        lines.add_column(style="bold cyan")
        lines.add_column()
        states = ("active", "tool_wait", "paused", "queued", "pending")
        lines.add_row(
            "agents",
            "   ".join(
                f"{name.replace('_', ' ')} [b]{control.get(name, 0)}[/b]"
                for name in states
                if name != "queued" or control.get(name)
            ),
        )
        bars = sparkline(list(self._windows), _SPARK_WIDTH)
        lines.add_row("window", f"W [b]{_width(control)}[/b]   [green]{bars}[/green]")
        pools = control.get("pools") or {}
        if len(pools) > 1:
            lines.add_row("pools", "\n".join(_pool(row) for row in pools.values()))
        lines.add_row(
            "cache",
            f"U [b]{share(control.get('usage'))}[/b]   H [b]{share(control.get('hit_rate'))}[/b]   "
            f"occupancy {share(control.get('occupancy'))}   phase [b]{control.get('phase', '–')}[/b]"
            + ("   U and H estimated" if control.get("estimated") else "")
            + ("   [yellow]stale sample[/yellow]" if control.get("stale") else ""),
        )
        lines.add_row(
            "tokens",
            f"in {amount(sums.get('input_tokens', 0))}   out {amount(sums.get('output_tokens', 0))}   "
            f"{amount(rates['output_tokens'])} out/s   hit rate {share(snapshot.hit_rate, unknown)}   "
            f"recomputed {share(snapshot.recomputed_share, unknown)}",
        )
        lines.add_row(
            "tools",
            f"{amount(sums.get('tool_calls', 0))} calls   {amount(rates['tool_calls'])}/s   "
            f"{sums.get('tool_seconds', 0):.0f} tool seconds   turns {amount(sums.get('turns', 0))}",
        )
        reward = f"{snapshot.reward / snapshot.rewarded:.2f} over {snapshot.rewarded}" if snapshot.rewarded else "–"
        lines.add_row("results", f"reward {reward}   {_endings(snapshot)}")
        notes = [Text(note, style="yellow") for note in snapshot.notes]
        return Panel(Group(progress, lines, *notes), title=self._title, title_align="left", border_style="dim")


class LineView:
    """One line every few seconds, for logs and pipes."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._shown_seconds = -_LINE_SECONDS
        self._last: Snapshot | None = None

    def __enter__(self) -> LineView:
        self._print(self._title)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._last is not None:
            self._line(self._last)

    def show(self, snapshot: Snapshot) -> None:
        for note in snapshot.notes:
            if self._last is None or note not in self._last.notes:
                self._print(note)
        self._last = snapshot
        if snapshot.seconds - self._shown_seconds >= _LINE_SECONDS:
            self._shown_seconds = snapshot.seconds
            self._line(snapshot)

    def note(self, text: str) -> None:
        self._print(text)

    def _line(self, snapshot: Snapshot) -> None:
        control, sums = snapshot.control, snapshot.sums
        self._print(
            f"{duration(snapshot.seconds):>8}  ended {snapshot.ended}/{snapshot.agents}"
            f"  W {_width(control, 'inf')}"
            f"  active {control.get('active', 0)}  tool wait {control.get('tool_wait', 0)}"
            f"  paused {control.get('paused', 0)}  pending {control.get('pending', 0)}"
            f"  U {share(control.get('usage'))}  H {share(control.get('hit_rate'))}  {control.get('phase', '–')}"
            f"  turns {sums.get('turns', 0):.0f}  tools {sums.get('tool_calls', 0):.0f}  {_endings(snapshot)}"
        )

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def make_view(console: Console, title: str) -> View:
    """The view that fits the console."""
    return LiveView(console, title) if console.is_terminal else LineView(console, title)


def _width(control: Mapping[str, Any], unbounded: str = "∞") -> str:
    places, tokens = control.get("window"), control.get("window_tokens")
    return window_width(places, tokens, control.get("footprint_tokens"), unbounded)


def _pool(row: Mapping[str, Any]) -> str:
    window = window_width(row["window_after"], row["window_tokens"], row["footprint_tokens"])
    state = "" if row["pool_state"] == "open" else f"   [yellow]{row['pool_state']}[/yellow]"
    return (
        f"{row['pool']}   W [b]{window}[/b]   held {row['places_held']}   U {share(row['usage'])}   "
        f"H {share(row['hit_rate'])}{state}"
    )


def _rates(before: Snapshot | None, now: Snapshot) -> dict[str, float]:
    """Per second since the last snapshot."""
    span = now.seconds - before.seconds if before else 0.0
    return {
        name: max(0.0, (now.sums.get(name, 0) - before.sums.get(name, 0)) / span) if before and span > 0 else 0.0
        for name in ("output_tokens", "tool_calls")
    }


def _endings(snapshot: Snapshot) -> str:
    return "  ".join(f"{name} {count}" for name, count in sorted(snapshot.endings.items())) or "none ended yet"
