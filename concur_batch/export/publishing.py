"""A directory that is there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from concur_batch.trace.files import disk_error, locked, make_directory, sync_directory


class Occupied(Exception):
    """Nothing may be written there. One line: what is there, and how to mend it."""


@contextmanager
def publishing(out: Path) -> Iterator[Path]:
    """Yields an empty directory beside `out`; it becomes `out`, durably, when the block ends well.

    Otherwise nothing is left behind; only a killed process leaves it, under a name with a dot in front, which the next
    one for the same `out` removes. `out` may be there already if it is an empty directory. Raises Occupied, and
    TraceError for an OSError, also for one of the block.
    """
    out = out.resolve()
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise Occupied(f"{out} is there already and not empty; remove it, or give another directory")
        make_directory(out.parent)
        with locked(out.with_name(f".{out.name}.lock")) as held:
            if not held:
                raise Occupied(f"another command writes {out} just now; wait for it, or give another directory")
            staging = out.with_name(f".{out.name}.tmp")
            shutil.rmtree(staging, ignore_errors=True)
            try:
                staging.mkdir()
                yield staging
                _sync(staging)
                staging.replace(out)
                sync_directory(out.parent)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise disk_error("write", out, error) from error


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            _sync(path)
        else:
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync_directory(directory)
