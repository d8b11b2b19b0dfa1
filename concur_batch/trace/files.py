"""Files that are whole or absent: write beside, sync, rename, sync the directory. And the one error of this room."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMP_SUFFIX = ".tmp"
# What flock says on a network file system without a lock service, and on file systems that never had locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


class TraceError(Exception):
    """The run directory cannot be written or read. One line: which path, what is wrong, how to mend it."""


def disk_error(what: str, path: Path | str, error: OSError) -> TraceError:
    """A TraceError of an operating system's or object store's error, with the path and what it says, in one line."""
    said = os.strerror(error.errno) if error.errno else " ".join(str(error).split())
    return TraceError(f"cannot {what} {path}: {said}")


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


def lock(descriptor: int, path: Path) -> bool:
    """Locks an open file for this process alone, until it is closed; False if another holds it, or has deleted it.

    Raises TraceError, on a file system without locks with what to do.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise TraceError(
                f"cannot lock {path}: its file system has no locks ({os.strerror(error.errno)}); "
                "set `output` to a local disk, and `storage` to where the tables shall be"
            ) from error
        raise disk_error("lock", path, error) from error
    return os.fstat(descriptor).st_nlink > 0


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """A lock by a file of its own, which is made and deleted again; yields False if another process holds it.

    Raises TraceError where the file cannot be made or locked.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise disk_error("make", path, error) from error
    held: bool | None = None
    try:
        held = lock(descriptor, path)
        yield held
    finally:
        if held is not False:
            with suppress(OSError):
                path.unlink()
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock of `locked` there; False where nothing tells. Two looks do not disturb
    each other."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
