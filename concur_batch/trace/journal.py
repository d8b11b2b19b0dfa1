"""The journal: append-only segment files of framed rows, `<table>\\t<json>\\n`.

The rows of one turn arrive in one append, the tools rows before the turns row, so tools rows at the end of a file
belong to a turn that was cut off. A segment is locked (flock) while a process holds it open for appending.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import orjson

from concur_batch.trace.files import TraceError, disk_error, lock, sync_directory
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


class Journal:
    """One segment open for appending. Not thread-safe, but `sync` may run in a thread beside `append`.

    Raises TraceError if the file cannot be created or exists already.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._appended = (0, 0)  # bytes, rows; replaced as one, since sync reads it from a thread
        self._durable = (0, 0)
        self._torn = False  # a failed append left bytes behind those appended
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise disk_error("create journal", path, error) from error
        try:
            if not lock(self._descriptor, path):  # a recovery took the file for one that a killed writer had left
                raise TraceError(f"cannot create journal {path}: another process recovers this run; try again")
            sync_directory(path.parent)
        except (OSError, TraceError) as error:
            self.close()
            with contextlib.suppress(OSError):
                path.unlink()
            if isinstance(error, OSError):
                raise disk_error("create journal", path, error) from error
            raise

    @property
    def size_bytes(self) -> int:
        return self._appended[0]

    @property
    def rows(self) -> int:
        return self._appended[1]

    def append(self, lines: bytes) -> Counter[str]:
        """Appends framed rows in one write and returns their number by table. Durable only after `sync`.

        All or nothing: after a TraceError (disk full) the file is as before and the next append may succeed.
        Raises ValueError for bytes that are not whole rows, or that end with a tools row without its turns row.
        """
        counts = count_rows(lines)
        try:
            if self._torn:
                self._truncate()
            position = 0
            while position < len(lines):
                self._torn = True
                position += os.pwrite(self._descriptor, memoryview(lines)[position:], self.size_bytes + position)
            self._torn = False
        except OSError as error:
            with contextlib.suppress(OSError):  # the next append tries again before it writes
                self._truncate()
            raise disk_error("append to journal", self.path, error) from error
        self._appended = (self.size_bytes + len(lines), self.rows + counts.total())
        return counts

    def sync(self) -> None:
        """Makes durable what was appended before the call. Raises TraceError; then call `rollback`."""
        appended = self._appended
        if appended == self._durable:
            return
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise disk_error("sync journal", self.path, error) from error
        self._durable = appended

    def rollback(self) -> None:
        """Takes back all rows that are not durable: after a failed sync the kernel may have dropped their pages."""
        self._appended = self._durable
        self._torn = True
        with contextlib.suppress(OSError):  # the next append tries again before it writes
            self._truncate()

    def close(self) -> None:
        """Closes the file and gives up its lock, without a sync."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _truncate(self) -> None:
        os.ftruncate(self._descriptor, self.size_bytes)
        self._torn = False


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
