"""Long output: through the user's pager on a terminal, plainly into a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.text import Text

# Wide enough for any table: what reads a pipe does not want cells cut.
PIPE_COLUMNS = 1000
# A row is one line, also where the terminal is narrower.
_LEAST_COLUMNS = 120
# As git sets it, for who has not: end at once where all fits on the screen, show colours, leave the screen as it is.
_LESS = "FRX"


def page(parts: Iterable[RenderableType]) -> None:
    """Print one after the other. Lines are not wrapped, so that they can be copied; on a terminal $PAGER's own keys
    serve to move about and to search."""
    if not sys.stdout.isatty():
        _print(Console(width=PIPE_COLUMNS), parts)
        return
    os.environ.setdefault("LESS", _LESS)
    console = Console(width=max(Console().width, _LEAST_COLUMNS))
    with console.pager(styles=True):
        _print(console, parts)


def _print(console: Console, parts: Iterable[RenderableType]) -> None:
    for part in parts:
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text))
