"""A workspace as one tar file and back: contents, modes, times, links, empty directories, and files with holes.

Nobody may be using the workspace meanwhile. What is in it is the agent's: symbolic links are never followed. Left out
are sockets, what lies behind a path of more than 4,096 bytes, extended attributes, and times of last access.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

_COPIED_BYTES = 1 << 20
_SECOND_NS = 1_000_000_000


class Scan(NamedTuple):
    """What a workspace looks like from outside: two scans are equal where nothing was changed between them."""

    digest: bytes
    newest_ns: int  # when the last change was made, by the file system's clock


def scan(workspace: Path) -> Scan:
    """Look at every name, but at no content: whatever changes one sets its ctime, which nobody can set back."""
    digest = blake2b(digest_size=16)
    newest_ns = 0
    with ExitStack() as locked:
        for name, status in _walk(workspace, locked):
            facts = (status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            digest.update(f"{len(name)} {facts} ".encode() + os.fsencode(name))
            newest_ns = max(newest_ns, status.st_ctime_ns)
    return Scan(digest.digest(), newest_ns)


def pack(workspace: Path, file: BinaryIO) -> None:
    """Write the workspace into an open file, as a tar of POSIX's format. Raises OSError."""
    first_names: dict[int, str] = {}
    with ExitStack() as locked, _tar(file, "w") as tar:
        for name, status in _walk(workspace, locked):
            info = tarfile.TarInfo(name)
            info.mode = stat.S_IMODE(status.st_mode)
            info.mtime = status.st_mtime_ns // _SECOND_NS
            info.pax_headers = {"mtime": f"{info.mtime}.{status.st_mtime_ns % _SECOND_NS:09d}"}
            path = workspace / name
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                first = first_names.setdefault(status.st_ino, name)
                if first != name:
                    info.type, info.linkname = tarfile.LNKTYPE, first
                    tar.addfile(info)
                    continue
            if stat.S_ISREG(status.st_mode):
                with open(_unlocked(path, status, locked), "rb", buffering=0) as content:  # noqa: PTH123
                    _add_file(tar, info, content, status)
                continue
            if stat.S_ISDIR(status.st_mode):
                info.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(status.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)  # noqa: PTH115 - as it is, not made tidy
            elif stat.S_ISFIFO(status.st_mode):
                info.type = tarfile.FIFOTYPE
            else:
                continue
            tar.addfile(info)


def unpack(file: BinaryIO, workspace: Path, owner: int | None) -> None:
    """Fill an empty workspace from what `pack` has written; with `owner`, all of it is given to that user.

    Raises OSError, or tarfile.TarError for a file that is no whole archive.
    """
    directories: list[tuple[Path, tarfile.TarInfo]] = []
    with _tar(file, "r") as tar:
        for info in tar:
            path = workspace / info.name
            if info.isdir():
                if info.name != ".":
                    path.mkdir(0o700)
                directories.append((path, info))
                continue  # its mode and its times come last: what is made in it needs one and changes the others
            if info.islnk():
                os.link(workspace / info.linkname, path, follow_symlinks=False)
                continue
            if info.issym():
                path.symlink_to(info.linkname)
            elif info.isfifo():
                os.mkfifo(path)
            else:
                with path.open("xb") as target:
                    _copy_out(tar, info, target)
            _dress(path, info, owner)
    for path, info in reversed(directories):
        _dress(path, info, owner)


def _tar(file: BinaryIO, mode: Literal["r", "w"]) -> tarfile.TarFile:
    # Names are bytes to Linux.
    return tarfile.TarFile(
        fileobj=file, mode=mode, format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
    )


def _walk(workspace: Path, locked: ExitStack) -> Iterator[tuple[str, os.stat_result]]:
    """Every name below, relative, with what it is; a directory before what it holds. The first is "." itself."""
    yield ".", os.lstat(workspace)
    pending = [""]
    while pending:
        prefix = pending.pop()
        directory = workspace / prefix
        try:
            with os.scandir(_unlocked(directory, os.lstat(directory), locked)) as entries:
                found = [(f"{prefix}{entry.name}", entry.stat(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                continue
            raise
        for name, status in sorted(found, key=lambda entry: entry[0]):
            yield name, status
            if stat.S_ISDIR(status.st_mode):
                pending.append(f"{name}/")


def _unlocked(path: Path, status: os.stat_result, locked: ExitStack) -> Path:
    """The path, once we may read there: an ordinary user's agent can lock its own files for that user as well."""
    wanted = stat.S_IRWXU if stat.S_ISDIR(status.st_mode) else stat.S_IRUSR
    mode = stat.S_IMODE(status.st_mode)
    if os.geteuid() != 0 and mode & wanted != wanted:
        path.chmod(mode | wanted)
        locked.callback(path.chmod, mode)
    return path


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, content: io.FileIO, status: os.stat_result) -> None:
    """One file; where it has holes, in GNU's sparse format 1.0, which tar and tarfile both read."""
    info.size = status.st_size
    if status.st_blocks * 512 >= status.st_size:
        tar.addfile(info, content)
        return
    extents = list(_extents(content.fileno(), status.st_size))
    numbers = [len(extents), *(number for extent in extents for number in extent)]
    table = "".join(f"{number}\n" for number in numbers).encode()
    table += bytes(-len(table) % tarfile.BLOCKSIZE)
    info.pax_headers = {
        **info.pax_headers,
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": info.name,
        "GNU.sparse.realsize": str(status.st_size),
    }
    info.size = len(table) + sum(length for _, length in extents)
    tar.addfile(info, _Extents(table, content, extents))


class _Extents(io.RawIOBase):
    """The table and then the extents of a file with holes, to be read once."""

    def __init__(self, table: bytes, content: io.FileIO, extents: Sequence[tuple[int, int]]) -> None:
        self._pieces = self._read_all(table, content, extents)
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, b"")):
            self._rest += piece
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken

    @staticmethod
    def _read_all(table: bytes, content: io.FileIO, extents: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        yield table
        for offset, length in extents:
            content.seek(offset)
            while length and (piece := content.read(min(length, _COPIED_BYTES))):
                yield piece
                length -= len(piece)


def _extents(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file holds data: offset and length; by custom, the last one ends with the file."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # nothing but a hole follows
                raise
            break
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end - begin
    if end < size:
        yield size, 0


def _copy_out(tar: tarfile.TarFile, info: tarfile.TarInfo, target: BinaryIO) -> None:
    source = tar.fileobj
    assert source is not None, "it is open"
    source.seek(info.offset_data)
    extents: Any = info.sparse if info.sparse is not None else ((0, info.size),)
    for offset, length in extents:
        target.seek(offset)
        while length:
            piece = source.read(min(length, _COPIED_BYTES))
            if not piece:
                raise tarfile.ReadError("unexpected end of data")
            target.write(piece)
            length -= len(piece)
    target.truncate(info.size)


def _dress(path: Path, info: tarfile.TarInfo, owner: int | None) -> None:
    """Owner, then mode (a change of owner clears bits of it), then times."""
    if owner is not None:
        os.chown(path, owner, owner, follow_symlinks=False)
    if not info.issym():
        path.chmod(info.mode)
    seconds, _, fraction = info.pax_headers["mtime"].partition(".")
    moment_ns = int(seconds) * _SECOND_NS + int(fraction)
    with suppress(NotImplementedError):
        os.utime(path, ns=(moment_ns, moment_ns), follow_symlinks=False)
