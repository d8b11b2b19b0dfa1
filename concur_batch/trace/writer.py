"""A recorder's writer, and the recovery of what killed writers left: journal segments in, Parquet parts out."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from concur_batch.trace.files import TEMP_SUFFIX, TraceError, disk_error, make_directory
from concur_batch.trace.journal import Journal, read_journal
from concur_batch.trace.parts import JOURNAL, REJECTED, SEGMENT_SUFFIX, Stored, store_segment
from concur_batch.trace.schema import SCHEMAS

_DIRECTORIES = (JOURNAL, REJECTED, *SCHEMAS)
_SEGMENT = re.compile(r"(?P<name>[A-Za-z0-9_-]+)-(?P<number>[0-9]{6,})\.")


class Writer:
    """Appends rows to the open segment under `<run_dir>/journal/` and turns full segments into Parquet.

    `name` is unique among the run's writers that live at one time; letters, digits, `_` and `-`. A segment is due
    for rotation at `segment_rows` rows, `segment_bytes` bytes, or once its first row is `segment_seconds` old.
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
        for directory in _DIRECTORIES:
            make_directory(self.run_dir / directory)
        self._next_number = 1 + max(_numbers(self.run_dir, name), default=-1)
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
        return self.open.size_bytes > 0 and (
            self.open.size_bytes >= self._segment_bytes
            or self.open.rows >= self._segment_rows
            or time.monotonic() - self._first_row_at >= self.segment_seconds
        )

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
        self.stored.add(store_segment(self.run_dir, sealed.path))
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


def recover(run_dir: Path | str, name: str | None = None) -> Recovered:
    """Turns the segments that killed writers left (of one name, or of all) into Parquet and removes half-written
    files. May itself be killed and run again: no row is doubled or lost. Segments of living writers are left alone.

    Raises TraceError for a directory that is not there and, once all others are recovered, for a damaged segment.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise TraceError(f"not a run directory: {run_dir}: there is no such directory")
    recovered = Recovered()
    live: set[str] = set()
    failures: list[TraceError] = []
    for segment in sorted((run_dir / JOURNAL).glob(f"*{SEGMENT_SUFFIX}")):
        if name is not None and _name_of(segment) != name:
            continue
        try:
            stored = _recover_segment(run_dir, segment)
        except TraceError as error:
            failures.append(error)
            continue
        if stored is None:
            live.add(segment.stem)
            recovered.live_segments += 1
        else:
            recovered.add(stored)
    for directory in (".", *_DIRECTORIES):
        for temporary in (run_dir / directory).glob(f".*{TEMP_SUFFIX}"):
            owner = temporary.name[1:].split(".")[0]
            if owner not in live and (name is None or _name_of(Path(temporary.name[1:])) == name):
                temporary.unlink(missing_ok=True)
                recovered.temporaries += 1
    if failures:
        raise failures[0]
    return recovered


def _recover_segment(run_dir: Path, segment: Path) -> Stored | None:
    """None if a living process holds the segment, or stored it meanwhile."""
    try:
        descriptor = os.open(segment, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise disk_error("open journal", segment, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for table in (REJECTED, *SCHEMAS):
            make_directory(run_dir / table)
        return store_segment(run_dir, segment)
    except (BlockingIOError, FileNotFoundError):
        return None
    finally:
        os.close(descriptor)


def _name_of(path: Path) -> str | None:
    match = _SEGMENT.match(path.name)
    return match["name"] if match else None


def _numbers(run_dir: Path, name: str) -> list[int]:
    """The segment numbers that a writer of this name has used in any file."""
    return [
        int(match["number"])
        for directory in _DIRECTORIES
        for path in (run_dir / directory).iterdir()
        if (match := _SEGMENT.match(path.name.lstrip("."))) and match["name"] == name
    ]
