"""Removing directory trees that someone hostile has filled."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def opened(name: str, flags: int, dir_fd: int | None = None) -> Iterator[int]:
    """Opens without following a symbolic link in the last component, and closes on leaving."""
    descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def unlock(name: str, dir_fd: int | None = None) -> None:
    """Lets its owner do all in a directory, without following a symbolic link (chmod itself would).

    Raises:
        NotADirectoryError: it is something else.
    """
    with opened(name, os.O_PATH | os.O_DIRECTORY, dir_fd) as descriptor:
        Path(f"/proc/self/fd/{descriptor}").chmod(stat.S_IMODE(os.fstat(descriptor).st_mode) | 0o700)


def remove_tree(name: str, dir_fd: int | None = None) -> None:
    """Removes a file or directory tree that no process uses any more; a missing one is fine.

    Any depth, any number of entries, any modes and names: subdirectories are moved up and emptied one by one, so
    neither recursion, long paths nor open files grow with the depth. Nothing outside of the tree is touched.
    """
    try:
        unlock(name, dir_fd)
    except NotADirectoryError:
        os.unlink(name, dir_fd=dir_fd)
        return
    except FileNotFoundError:
        return
    token = secrets.token_hex(8)
    moved = 0
    with opened(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd) as top:
        pending = _remove_files(top)
        while pending:
            directory = pending.pop()
            unlock(directory, top)
            with opened(directory, os.O_RDONLY | os.O_DIRECTORY, top) as current:
                for child in _remove_files(current):
                    # Moving a directory rewrites its '..', so it must be writable itself.
                    unlock(child, current)
                    moved += 1
                    pending.append(f"{token}-{moved}")
                    os.rename(child, pending[-1], src_dir_fd=current, dst_dir_fd=top)
            os.rmdir(directory, dir_fd=top)
    os.rmdir(name, dir_fd=dir_fd)


def _remove_files(directory: int) -> list[str]:
    """Unlinks all that is no directory and returns the names of the directories."""
    directories = []
    with os.scandir(directory) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        if is_directory:
            directories.append(name)
        else:
            os.unlink(name, dir_fd=directory)
    return directories
