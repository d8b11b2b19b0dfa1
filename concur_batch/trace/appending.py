"""A file that one process appends lines to, whose lock (flock) it holds: all of them or none, on a full disk too."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from concur_batch.trace.files import TraceError, disk_error, lock, sync_directory


class AppendFile:
    """Open for appending, in a directory that is there; errors call it `kind`. Not thread-safe, but `sync` may run in a
    thread beside `write`.

    Raises TraceError if the file cannot be created or exists already.
    """

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self._kind = kind
        self._appended = (0, 0)  # bytes, rows; replaced as one, since sync reads it from a thread
        self._durable = (0, 0)
        self._torn = False  # a failed write left bytes behind those appended
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise disk_error(f"create {kind}", path, error) from error
        try:
            if not lock(self._descriptor, path):  # a recovery took the file for one that a killed writer had left
                raise TraceError(f"cannot create {kind} {path}: another process recovers this run; try again")
            sync_directory(path.parent)
        except (OSError, TraceError) as error:
            self.close()
            with contextlib.suppress(OSError):
                path.unlink()
            if isinstance(error, OSError):
                raise disk_error(f"create {kind}", path, error) from error
            raise

    @property
    def size_bytes(self) -> int:
        return self._appended[0]

    @property
    def rows(self) -> int:
        return self._appended[1]

    def write(self, lines: bytes, rows: int) -> None:
        """Appends so many rows. Durable only after `sync`.

        All or nothing: after a TraceError (disk full) the file is as before and the next write may succeed.
        """
        try:
            if self._torn:
                self._truncate()
            position = 0
            while position < len(lines):
                self._torn = True
                position += os.pwrite(self._descriptor, memoryview(lines)[position:], self.size_bytes + position)
            self._torn = False
        except OSError as error:
            with contextlib.suppress(OSError):  # the next write tries again before it writes
                self._truncate()
            raise disk_error(f"append to {self._kind}", self.path, error) from error
        self._appended = (self.size_bytes + len(lines), self.rows + rows)

    def sync(self) -> None:
        """Makes durable what was appended before the call. Raises TraceError; then call `rollback`."""
        appended = self._appended
        if appended == self._durable:
            return
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise disk_error(f"sync {self._kind}", self.path, error) from error
        self._durable = appended

    def rollback(self) -> None:
        """Takes back all rows that are not durable: after a failed sync the kernel may have dropped their pages."""
        self._appended = self._durable
        self._torn = True
        with contextlib.suppress(OSError):  # the next write tries again before it writes
            self._truncate()

    def close(self) -> None:
        """Closes the file and gives up its lock, without a sync."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _truncate(self) -> None:
        os.ftruncate(self._descriptor, self.size_bytes)
        self._torn = False
