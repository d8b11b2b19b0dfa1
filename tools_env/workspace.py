"""Access from the host to files of a workspace that its agent may have filled with traps.

A path is walked one component at a time from the workspace's own descriptor, never through `..` or a symbolic link,
so whatever the agent plants or swaps while we walk, we stay inside. Files are opened without waiting and used only if
they are regular, so no FIFO, socket or device can hold us up.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from tools_env.trees import opened, remove_tree, unlock

_MAX_PATH = 4096
_MAX_DEPTH = 64
_MAX_SCANNED = 50_000
_MOUNT = "/workspace"


# Failures of the machine, not of what the agent asked for.
_OURS = frozenset(
    (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE)
)


class FileProblem(Exception):
    """A file tool cannot do what it was asked; the message tells the model why."""


def split_path(path: str) -> list[str]:
    """The components of a path given relative to the workspace or below /workspace; none for the workspace itself.

    Raises:
        FileProblem: the path leads elsewhere.
    """
    if len(path) > _MAX_PATH:
        raise FileProblem(f"the path is longer than {_MAX_PATH} characters")
    inside = path
    if path.startswith("/"):
        if path != _MOUNT and not path.startswith(f"{_MOUNT}/"):
            raise FileProblem(f"{path}: only paths inside {_MOUNT} can be used")
        inside = path.removeprefix(_MOUNT)
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise FileProblem(f"{path}: '..' is not allowed in a path")
    return parts


def shown(name: str) -> str:
    """A file's name fit for one line of text: control characters and bytes that are not UTF-8 become escapes."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Workspace:
    """The files below `path`. With `owner`, a user and group id, what is made here is given to that user.

    All methods raise FileProblem for what is the agent's doing and OSError where the machine fails. They block: run
    them in a thread.
    """

    def __init__(self, path: Path, owner: int | None) -> None:
        self.path = path
        self._owner = owner

    def read(self, path: str, limit_bytes: int) -> tuple[bytes, int]:
        """The first `limit_bytes` of a file, and the file's size in bytes."""
        with self._file(path, os.O_RDONLY) as descriptor:
            size = os.fstat(descriptor).st_size
            pieces = []
            left = limit_bytes
            while left and (piece := os.read(descriptor, left)):
                pieces.append(piece)
                left -= len(piece)
            return b"".join(pieces), size

    def write(self, path: str, data: bytes) -> bool:
        """Replaces a file's whole content, making the file and its directories where missing; True if it was new.

        The file keeps its mode.
        """
        parts = split_path(path)
        if not parts:
            raise FileProblem(f"{path}: is a directory")
        with self._directory(parts[:-1], create=True) as parent, _explained(path):
            try:
                descriptor = os.open(
                    parts[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=parent
                )
            except FileExistsError:
                new = False
            else:
                new = True
                self._give(descriptor)
                _write_all(descriptor, data)
        if not new:
            with self._file(path, os.O_WRONLY) as descriptor, _explained(path):
                os.ftruncate(descriptor, 0)
                _write_all(os.dup(descriptor), data)
        return new

    def force(self, path: str, data: bytes) -> None:
        """Like `write`, but whatever stands in the way, be it a link, a FIFO or a locked directory, is removed.

        No other process may be using the workspace.
        """
        parts = split_path(path)
        if not parts:
            raise FileProblem(f"{path}: is a directory")
        with self._directory(parts[:-1], create=True, force=True) as parent, _explained(path):
            remove_tree(parts[-1], parent)
        self.write(path, data)

    def list(self, path: str, limit: int) -> tuple[list[str], int]:
        """What is below a directory: the first `limit` paths, relative to the workspace, and how many there are.

        Sorted, directories with a trailing '/', symbolic links as `name -> target` and not followed.
        """
        parts = split_path(path)
        prefix = "".join(f"{shown(part)}/" for part in parts)
        lines: list[str] = []
        count = 0
        with self._directory(parts) as top, _explained(path):
            for line in islice(_walk(top, prefix, _MAX_DEPTH), _MAX_SCANNED):
                count += 1
                if count <= limit:
                    lines.append(line)
        return lines, count

    @contextmanager
    def _file(self, path: str, flags: int) -> Iterator[int]:
        """Opens an existing regular file."""
        parts = split_path(path)
        if not parts:
            raise FileProblem(f"{path}: is a directory")
        with self._directory(parts[:-1]) as parent:
            with _explained(path, parts[-1], parent):
                descriptor = os.open(
                    parts[-1], flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=parent
                )
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                raise FileProblem(f"{path}: is {_kind(mode)}, not a regular file")
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def _directory(self, parts: Sequence[str], create: bool = False, force: bool = False) -> Iterator[int]:
        """Opens a directory, walking `parts` down from the workspace."""
        flags = os.O_PATH | os.O_DIRECTORY
        descriptor = os.open(self.path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            for depth, part in enumerate(parts):
                path = "/".join(parts[: depth + 1])
                if force:
                    try:
                        unlock(part, descriptor)
                    except NotADirectoryError:
                        os.unlink(part, dir_fd=descriptor)
                    except FileNotFoundError:
                        pass
                if create:
                    with _explained(path), suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=descriptor)
                        self._give_directory(part, descriptor)
                with _explained(path, part, descriptor):
                    below = os.open(part, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def _give_directory(self, name: str, parent: int) -> None:
        if self._owner is not None:
            with opened(name, os.O_RDONLY | os.O_DIRECTORY, parent) as descriptor:
                self._give(descriptor)

    def _give(self, descriptor: int) -> None:
        if self._owner is not None:
            os.fchown(descriptor, self._owner, self._owner)


def _write_all(descriptor: int, data: bytes) -> None:
    with open(descriptor, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]


def _walk(directory: int, prefix: str, depth: int) -> Iterator[str]:
    with opened(".", os.O_RDONLY | os.O_DIRECTORY, directory) as readable, os.scandir(readable) as found:
        entries = sorted(islice(found, _MAX_SCANNED), key=lambda entry: entry.name)
        for entry in entries:
            line = f"{prefix}{shown(entry.name)}"
            if entry.is_symlink():
                target = ""
                with suppress(OSError):
                    target = os.readlink(entry.name, dir_fd=readable)
                yield f"{line} -> {shown(target)}"
            elif not entry.is_dir(follow_symlinks=False):
                yield line
            else:
                yield f"{line}/"
                if depth > 1:
                    with suppress(OSError), opened(entry.name, os.O_PATH | os.O_DIRECTORY, readable) as below:
                        yield from _walk(below, f"{line}/", depth - 1)


@contextmanager
def _explained(path: str, name: str | None = None, parent: int | None = None) -> Iterator[None]:
    """Turns the kernel's refusals into FileProblem; with `name` in `parent` it can tell a symbolic link."""
    try:
        yield
    except OSError as error:
        if error.errno in _OURS:
            raise
        if name is not None:
            with suppress(OSError):
                if stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
                    raise FileProblem(
                        f"{path}: is a symbolic link, which file tools do not follow; use the target's own path or bash"
                    ) from None
        if isinstance(error, FileNotFoundError):
            raise FileProblem(f"{path}: no such file or directory") from None
        raise FileProblem(f"{path}: {(error.strerror or str(error)).lower()}") from None


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))
    return next((name for test, name in kinds if test(mode)), "a device")
