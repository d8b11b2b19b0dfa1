"""Tables of plain columns, as all lists are shown. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def columns(names: Sequence[str], right: Sequence[str]) -> Table:
    """Columns without lines, those of `right` flush right; where the terminal is narrow, the first one gives way."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for number, name in enumerate(names):
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if number == 0 else len(name),
            ratio=1 if number == 0 else None,
        )
    return table
