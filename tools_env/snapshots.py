"""The durable states of one agent's workspace, from which another process can go on: a file for each that is needed.

root/saved/<key>/<mark>.tar    a workspace as it was; its mark is written down by whoever goes on from it
"""

from __future__ import annotations

import os
import secrets
import tarfile
import time
from pathlib import Path

from tools_env.archive import pack, scan, unpack
from tools_env.spec import StateLost
from tools_env.trees import remove_tree

SAVED = "saved"
AS_OPENED = "0"
"""The mark of a workspace that holds nothing but what it was opened with."""

_SUFFIX = ".tar"
# File systems tell times in steps of up to this: what is changed again so soon may look as it did.
_CLOCK_STEP_NS = 10_000_000


class Snapshots:
    """Those of one workspace, which has just been made or restored and is as `mark` says. Blocks: use it in a thread.

    A snapshot is written under a name of its own and counts once somebody durably says so; so a torn one is nobody's.
    """

    def __init__(self, directory: Path, workspace: Path, mark: str) -> None:
        self._directory = directory
        self._workspace = workspace
        self._marks = [mark]
        self._scan = scan(workspace)
        self._touched = self._blind = False

    @property
    def mark(self) -> str:
        """Of the newest."""
        return self._marks[-1]

    def touch(self) -> None:
        """Something begins that may change the workspace."""
        if not self._touched:
            self._touched = True
            self._blind = time.time_ns() - self._scan.newest_ns < _CLOCK_STEP_NS

    def save(self, recorded: str) -> str:
        """The mark of the workspace as it is now, durable; `recorded` is the newest that is on record: those before it
        are removed. Raises OSError, and may be called again."""
        self._drop_before(recorded)
        if self._touched:
            found = scan(self._workspace)
            if self._blind or found.digest != self._scan.digest:
                mark = secrets.token_hex(8)
                self._write(mark)
                self._marks.append(mark)
                # Packing may have had to unlock what an ordinary user cannot read, and to lock it again.
                self._scan = found if os.geteuid() == 0 else scan(self._workspace)
            self._touched = self._blind = False
        return self.mark

    def _drop_before(self, recorded: str) -> None:
        if recorded in self._marks:
            while self._marks[0] != recorded:
                (self._directory / f"{self._marks[0]}{_SUFFIX}").unlink(missing_ok=True)
                del self._marks[0]

    def _write(self, mark: str) -> None:
        _make_directory(self._directory)
        path = self._directory / f"{mark}{_SUFFIX}"
        try:
            with path.open("xb") as file:
                pack(self._workspace, file)
                file.flush()
                os.fsync(file.fileno())
            _sync_directory(self._directory)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def restore(directory: Path, mark: str, workspace: Path, owner: int | None) -> None:
    """Fill the workspace, which is empty, with what was saved under the mark. Raises StateLost, or OSError."""
    path = directory / f"{mark}{_SUFFIX}"
    try:
        with path.open("rb") as file:
            unpack(file, workspace, owner)
    except FileNotFoundError:
        raise StateLost(f"the saved workspace {path} is gone") from None
    except tarfile.TarError as error:
        raise StateLost(f"the saved workspace {path} is damaged: {error}") from None


def forget_others(directory: Path, mark: str | None) -> None:
    """Remove an agent's snapshots but the one of that mark; of what dead processes have left, half-written ones too."""
    for path in directory.glob("*"):
        if path.name != f"{mark}{_SUFFIX}":
            path.unlink(missing_ok=True)


def forget_all(root: Path) -> None:
    """Remove all snapshots below a root: every agent has ended, on record."""
    remove_tree(str(root / SAVED))


def _make_directory(path: Path) -> None:
    if path.is_dir():
        return
    _make_directory(path.parent)
    path.mkdir(exist_ok=True)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
