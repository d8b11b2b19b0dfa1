"""Long output: through the user's pager on a terminal, plainly into a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

import typer
from rich.console import Console, RenderableType
from rich.text import Text

# Wide enough for any table: what reads a pipe does not want cells cut.
PIPE_COLUMNS = 1000
# As git sets it, for who has not: end at once where all fits on the screen, show colours, leave the screen as it is.
_LESS = "FRX"


def page(parts: Iterable[RenderableType]) -> None:
    """Print one after the other, made only as far as they are read. Lines are not wrapped, so that they can be copied;
    $PAGER's own search and keys serve to move about."""
    if sys.stdout.isatty():
        os.environ.setdefault("LESS", _LESS)
        typer.echo_via_pager(_rendered(parts))
        return
    console = Console(width=PIPE_COLUMNS)
    for part in parts:
        _print(console, part)


def _rendered(parts: Iterable[RenderableType]) -> Iterator[str]:
    console = Console()
    for part in parts:
        with console.capture() as capture:
            _print(console, part)
        yield capture.get()


def _print(console: Console, part: RenderableType) -> None:
    console.print(part, highlight=False, soft_wrap=isinstance(part, Text))
