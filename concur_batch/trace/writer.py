"""A recorder's writer, and the recovery of what killed writers left: journal segments in, Parquet parts out."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from concur_batch.trace.compaction import merged_segments, settle
from concur_batch.trace.files import TEMP_SUFFIX, TraceError, disk_error, lock, make_directory
from concur_batch.trace.journal import JOURNAL, SEGMENT_SUFFIX, Journal, read_journal
from concur_batch.trace.parts import REJECTED, Stored, store_segment
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.tables import Tables, tables_of

_SEGMENT = re.compile(r"(?P<name>[A-Za-z0-9_-]+)-(?P<number>[0-9]{6,})\.")


class Writer:
    """Appends rows to the open segment under `<run_dir>/journal/` and turns full segments into Parquet.

    `name` is unique among the run's writers that live at one time; letters, digits, `_` and `-`. A segment is due
    for rotation at `segment_rows` rows, `segment_bytes` bytes, or once its first row is `segment_seconds` old.
    `storage` is the URI of the run's tables; by default it is what the manifest says, else the run directory.
    Not thread-safe, but `Journal.sync` and `store` of a sealed segment may run in threads beside `append`.
    """

    def __init__(
        self,
        run_dir: Path | str,
        name: str,
        *,
        segment_rows: int = 50_000,
        segment_bytes: int = 32 << 20,
        segment_seconds: float = 10.0,
        storage: str | None = None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise ValueError(f"recorder name {name!r}: only letters, digits, _ and - are allowed")
        self.run_dir = Path(run_dir)
        self.name = name
        self.segment_seconds = segment_seconds
        self.stored = Stored()
        self._segment_rows = segment_rows
        self._segment_bytes = segment_bytes
        self._first_row_at = 0.0
        self.tables = tables_of(self.run_dir, storage)
        for directory in (JOURNAL, REJECTED):
            make_directory(self.run_dir / directory)
        self.tables.make()
        self._next_number = 1 + max(_numbers(self.run_dir, self.tables, name), default=-1)
        self.open = self.new_segment()

    def append(self, lines: bytes) -> Counter[str]:
        """As Journal.append, to the open segment."""
        if not self.open.size_bytes:
            self._first_row_at = time.monotonic()
        return self.open.append(lines)

    def sync(self) -> None:
        """As Journal.sync; rows that could not be made durable are taken back before TraceError is raised."""
        try:
            self.open.sync()
        except TraceError:
            self.open.rollback()
            raise

    @property
    def due(self) -> bool:
        """Whether the open segment should be rotated."""
        old = time.monotonic() - self._first_row_at >= self.segment_seconds
        return self.open.size_bytes > 0 and (old or self.full)

    @property
    def full(self) -> bool:
        """Whether the open segment has as many rows or bytes as one should have."""
        return self.open.size_bytes >= self._segment_bytes or self.open.rows >= self._segment_rows

    def rotate(self) -> None:
        """Stores the open segment as Parquet and goes on in a new one; nothing to do if it has no rows."""
        if self.open.size_bytes:
            self.sync()
            self.store(self.swap(self.new_segment()))

    def close(self) -> None:
        """Stores the open segment as Parquet. If that fails its rows stay in the journal, for `recover`."""
        try:
            self.sync()
            self.store(self.open)
        finally:
            self.open.close()

    def new_segment(self) -> Journal:
        """Creates the file of the next segment."""
        number = self._next_number
        self._next_number += 1
        return Journal(self.run_dir / JOURNAL / f"{self.name}-{number:06d}{SEGMENT_SUFFIX}")

    def swap(self, segment: Journal) -> Journal:
        """Makes `segment` the open one and returns the one that was, which is then to be synced and stored."""
        sealed, self.open = self.open, segment
        return sealed

    def store(self, sealed: Journal) -> None:
        """Turns a sealed and synced segment into Parquet, and deletes and closes it. May be tried again."""
        self.stored.add(store_segment(self.tables, self.run_dir, sealed.path))
        sealed.close()


@dataclass
class Recovered(Stored):
    """What `recover` did; the counts of Stored are those of the recovered segments."""

    live_segments: int = 0  # left alone: a living process holds them
    temporaries: int = 0  # half-written files removed


def recorded_lines(run_dir: Path | str, name: str) -> set[bytes]:
    """The framed rows in the segments that killed writers of that name left, as they were committed."""
    segments = (Path(run_dir) / JOURNAL).glob(f"*{SEGMENT_SUFFIX}")
    return {
        b"%s\t%s\n" % (row.table.encode(), row.json)
        for segment in segments
        if _name_of(segment) == name
        for row in read_journal(segment).rows
    }


def recover(run_dir: Path | str, name: str | None = None, storage: str | None = None) -> Recovered:
    """Turns the segments that killed writers left (of one name, or of all) into Parquet and removes half-written
    files. May itself be killed and run again: no row is doubled or lost. Segments of living writers are left alone.
    For all names, merges that a killed process left half-way are ended too. `storage` is as Writer's.

    Raises TraceError for a directory that is not there and, once all others are recovered, for a damaged segment.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise TraceError(f"not a run directory: {run_dir}: there is no such directory")
    tables = tables_of(run_dir, storage)
    recovered = Recovered()
    live: set[str] = set()
    failures: list[TraceError] = []
    if name is None:
        for table in SCHEMAS:
            settle(tables, table)
    segments = sorted((run_dir / JOURNAL).glob(f"*{SEGMENT_SUFFIX}"))
    segments = [segment for segment in segments if name is None or _name_of(segment) == name]
    # A node that comes back may bring segments whose parts have been merged meanwhile.
    merged = {table: merged_segments(tables, table, tables.sizes(table)) for table in SCHEMAS} if segments else {}
    for segment in segments:
        try:
            stored = _recover_segment(run_dir, tables, segment, merged)
        except TraceError as error:
            failures.append(error)
            continue
        if stored is None:
            live.add(segment.stem)
            recovered.live_segments += 1
        else:
            recovered.add(stored)
    for directory in (".", JOURNAL, REJECTED):
        for temporary in (run_dir / directory).glob(f".*{TEMP_SUFFIX}"):
            if _is_leftover(temporary.name, name, live):
                temporary.unlink(missing_ok=True)
                recovered.temporaries += 1
    for table in SCHEMAS:
        leftovers = [file for file in tables.sizes(table) if _is_leftover(file, name, live)]
        tables.delete(table, leftovers)
        recovered.temporaries += len(leftovers)
    if failures:
        raise failures[0]
    return recovered


def _recover_segment(
    run_dir: Path, tables: Tables, segment: Path, merged: Mapping[str, Set[tuple[str, int]]]
) -> Stored | None:
    """None if a living process holds the segment, or stored it meanwhile."""
    try:
        descriptor = os.open(segment, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error("open journal", segment, error) from error
    try:
        if not lock(descriptor, segment):
            return None
        make_directory(run_dir / REJECTED)
        tables.make()
        key = _key_of(segment)
        return store_segment(tables, run_dir, segment, [table for table, held in merged.items() if key in held])
    except FileNotFoundError:
        return None
    finally:
        os.close(descriptor)


def _is_leftover(file_name: str, name: str | None, live: Set[str]) -> bool:
    """Whether a file was half-written by a writer of that name, or by any, whose segment is not alive."""
    if not file_name.startswith(".") or not file_name.endswith(TEMP_SUFFIX):
        return False
    owner = Path(file_name[1:])
    return owner.name.split(".")[0] not in live and (name is None or _name_of(owner) == name)


def _name_of(path: Path) -> str | None:
    match = _SEGMENT.match(path.name)
    return match["name"] if match else None


def _key_of(segment: Path) -> tuple[str, int] | None:
    match = _SEGMENT.match(segment.name)
    return (match["name"], int(match["number"])) if match else None


def _numbers(run_dir: Path, tables: Tables, name: str) -> list[int]:
    """The segment numbers that a writer of this name has used in any file."""
    files = [path.name for directory in (JOURNAL, REJECTED) for path in (run_dir / directory).iterdir()]
    files += [file for table in SCHEMAS for file in tables.sizes(table)]
    keys = (_key_of(Path(file.lstrip("."))) for file in files)
    return [key[1] for key in keys if key is not None and key[0] == name]
