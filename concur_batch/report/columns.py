"""Tables of plain columns, as all lists are shown. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from rich.cells import cell_len
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


def aligned(rows: Sequence[Sequence[str]], right: Collection[int]) -> Iterator[str]:
    """Rows of cells as lines, each column as wide as its widest cell, those of the numbers in `right` flush right: for
    lists of thousands of rows, on which a table would spend seconds."""
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        spaces = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        cells = [f"{gap}{cell}" if number in right else f"{cell}{gap}"
                 for number, (cell, gap) in enumerate(zip(row, spaces, strict=True))]  # fmt: skip
        yield "  ".join(cells).rstrip()
