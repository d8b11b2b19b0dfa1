"""Where workspaces live, and what becomes of those whose run died.

root/live-<random>/<key>/   a workspace of a living environment, which holds a lock on live-<random>/.lock
root/kept/<key>/            a workspace that was kept for a person to look at
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from tools_env.trees import remove_tree

_LIVE = "live-"
_LOCK = ".lock"
_KEPT = "kept"


class LiveDirectory:
    """A new directory for workspaces below `root`, locked as long as this process lives."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self.path, self._lock = _lock_new_directory(root)

    def discard(self, name: str, keep: bool) -> Path | None:
        """Removes the workspace `name`, or moves it to the kept ones, in place of an older one, and says where."""
        if not keep:
            remove_tree(str(self.path / name))
            return None
        kept = self._root / _KEPT / name
        kept.parent.mkdir(exist_ok=True)
        remove_tree(str(kept))
        return (self.path / name).rename(kept)

    def remove(self) -> None:
        """Removes the directory with all that is in it."""
        remove_tree(str(self.path))
        os.close(self._lock)


def sweep(root: Path) -> int:
    """Removes the workspaces that dead runs left below `root`, and returns the number of environments removed.

    Environments whose process lives and kept workspaces stay.
    """
    swept = 0
    for live in sorted(root.glob(f"{_LIVE}*")):
        try:
            lock = os.open(live / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(str(live))
            swept += 1
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    return swept


def _lock_new_directory(root: Path) -> tuple[Path, int]:
    while True:
        live = Path(tempfile.mkdtemp(prefix=_LIVE, dir=root))
        lock = -1
        # A sweep may come between the directory and its lock, and then wins.
        with suppress(FileNotFoundError, BlockingIOError):
            lock = os.open(live / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (live / _LOCK).exists():
                return live, lock
        if lock >= 0:
            os.close(lock)
