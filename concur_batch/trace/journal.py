"""The journal: append-only segment files of framed rows, `<table>\\t<json>\\n`.

The rows of one turn arrive in one append, the tools rows before the turns row, so tools rows at the end of a file
belong to a turn that was cut off. A segment is locked (flock) while a process holds it open for appending.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import orjson

from concur_batch.trace.appending import AppendFile
from concur_batch.trace.files import TraceError, disk_error
from concur_batch.trace.schema import SCHEMAS

JOURNAL = "journal"  # the directory in the run directory
SEGMENT_SUFFIX = ".jsonl"

_TABLES = {name.encode(): name for name in SCHEMAS}


class Row(NamedTuple):
    table: str
    json: bytes
    offset: int  # of the row's line in its file, bytes

    @property
    def end(self) -> int:
        """The offset behind its newline."""
        return self.offset + len(self.table) + len(self.json) + 2


class Contents(NamedTuple):
    rows: list[Row]
    dropped_bytes: int  # of the torn tail


class Journal(AppendFile):
    """One segment open for appending; see AppendFile."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "journal")

    def append(self, lines: bytes) -> Counter[str]:
        """Appends framed rows as `write` does and returns their number by table.

        Raises ValueError for bytes that are not whole rows, or that end with a tools row without its turns row.
        """
        counts = count_rows(lines)
        self.write(lines, counts.total())
        return counts


def count_rows(lines: bytes) -> Counter[str]:
    """The number of framed rows by table. Raises ValueError as `Journal.append` says."""
    counts: Counter[str] = Counter()
    table = ""
    start = 0
    while start < len(lines):
        end = lines.find(b"\n", start)
        if end < 0:
            raise ValueError(f"a row without its newline: {lines[start : start + 80]!r}")
        table = _table_of(lines, start, end)
        if not table:
            raise ValueError(f"not a row: {lines[start : min(end, start + 80)]!r}")
        counts[table] += 1
        start = end + 1
    if table == "tools":
        raise ValueError("a tools row at the end, without its turns row: use encode_turn")
    return counts


def read_journal(path: Path) -> Contents:
    """The rows of a segment, and how many bytes of a torn tail were left out.

    The torn tail is a last line without its newline or that does not parse, and the tools rows before it whose turns
    row is missing. Raises TraceError with file and offset for a line that is no row in the middle, and
    FileNotFoundError. That a row of the middle is JSON within is seen when it is parsed into its table.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_error("read journal", path, error) from error
    rows: list[Row] = []
    start = 0
    while (end := content.find(b"\n", start)) >= 0:
        table = _table_of(content, start, end)
        if table:
            rows.append(Row(table, content[start + len(table) + 1 : end], start))
        elif end + 1 < len(content):
            raise torn_middle(path, start)
        start = end + 1
    if rows and not is_json(rows[-1].json):
        if rows[-1].end < len(content):
            raise torn_middle(path, rows[-1].offset)
        rows.pop()
    while rows and rows[-1].table == "tools":
        rows.pop()
    return Contents(rows, len(content) - (rows[-1].end if rows else 0))


def torn_middle(path: Path, offset: int) -> TraceError:
    """The error of a line that is no row though rows follow it: no crash of ours leaves that."""
    return TraceError(
        f"journal {path} is damaged at byte {offset}, before its end; to give up that row and all after it, "
        f"keep a copy and run: truncate -s {offset} {path}"
    )


def _table_of(content: bytes, start: int, end: int) -> str:
    """The table of the line content[start:end], or "" where it has not the form of a row."""
    tab = content.find(b"\t", start, min(end, start + 16))
    table = _TABLES.get(content[start:tab], "") if tab > 0 else ""
    framed = table and content[tab + 1 : tab + 2] == b"{" and content[end - 1 : end] == b"}"
    return table if framed else ""


def is_json(row: bytes) -> bool:
    """Whether the bytes are one JSON value in valid UTF-8."""
    try:
        orjson.loads(row)
    except orjson.JSONDecodeError:
        return False
    return True
