"""A small disk that can be full: a tmpfs, which only root may mount."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_BYTES = 64 << 20


class SmallDisk:
    """Mounted at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all the space that is left."""
        with self._ballast.open("wb", buffering=0) as file:
            for size_bytes in (1 << 20, 512):
                with suppress(OSError):
                    while True:
                        file.write(b"\1" * size_bytes)

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    """Mounts one at that path for the block. Raises OSError where that is not permitted."""
    path.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(path)]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        raise PermissionError(f"cannot mount a tmpfs: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def can_be_full() -> bool:
    """Whether a small disk can be mounted here."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            with small_disk(Path(directory)):
                return True
        except OSError:
            return False
