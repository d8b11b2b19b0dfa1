"""Files that are whole or absent: write beside, sync, rename, sync the directory. And the one error of this room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMP_SUFFIX = ".tmp"


class TraceError(Exception):
    """The run directory cannot be written or read. One line: which path, what is wrong, how to mend it."""


def disk_error(what: str, path: Path, error: OSError) -> TraceError:
    """A TraceError of an operating system's error, with the path and the errno's text."""
    return TraceError(f"cannot {what} {path}: {os.strerror(error.errno) if error.errno else error}")


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable: a file just created in it, renamed or removed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Makes a directory and those above it, durably. Raises TraceError."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)
    except OSError as error:
        raise disk_error("make directory", path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path in the same directory; what is written there becomes `path` when the block ends well.

    After it the file is durable under its name. If the block or the disk fails, `path` is as it was and nothing is
    left behind; a killed process leaves the temporary file, which starts with a dot and ends with TEMP_SUFFIX.
    Raises TraceError for an OSError, also for one raised in the block.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMP_SUFFIX}")
    try:
        yield temporary
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise disk_error("write", path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
