"""Merges a copy of a run for each of its steps, and dies there by os._exit: `merge_killed.py RUN COPIES`.

Prints the number of copies, of which the last one was not killed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet

from concur_batch.trace import tables as tables_module
from concur_batch.trace.compaction import compact
from concur_batch.trace.tables import Tables


class Steps:
    """Calls are counted, and the chosen one is the process's end."""

    def __init__(self, last: int) -> None:
        self._left = last

    def step(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **named: Any) -> Any:
            if self._left == 0:
                os._exit(9)
            self._left -= 1
            return call(*arguments, **named)

        return stepped


class Filesystem:
    """pyarrow's, its changes being steps."""

    def __init__(self, filesystem: Any, steps: Steps) -> None:
        self._filesystem = filesystem
        self.move = steps.step(filesystem.move)
        self.delete_file = steps.step(filesystem.delete_file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)


def merge(run_dir: Path, last: int) -> None:
    steps = Steps(last)
    for module, name in (
        *((os, name) for name in ("fsync", "unlink", "replace", "open")),
        (pyarrow.parquet.ParquetWriter, "write_table"),
        (pyarrow.parquet.ParquetWriter, "close"),
        (Path, "replace"),
        (Path, "unlink"),
    ):
        setattr(module, name, steps.step(getattr(module, name)))
    tables_module._DELETIONS = 1  # in order
    tables = Tables(run_dir)
    tables.filesystem = Filesystem(tables.filesystem, steps)
    compact(tables, row_group_bytes=1)


def main(run_dir: Path, copies: Path) -> None:
    number, code = 0, 9
    while code == 9:
        copy = copies / f"{number:03d}"
        shutil.copytree(run_dir, copy)
        child = os.fork()
        if child == 0:
            merge(copy, number)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        number += 1
    assert code == 0
    print(number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
