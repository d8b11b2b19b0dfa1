"""The end of a run: no journal and no intents are left, and the parts are few."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from concur_batch.trace.compaction import compact
from concur_batch.trace.files import TraceError, locked
from concur_batch.trace.intents import forget_intents
from concur_batch.trace.journal import JOURNAL
from concur_batch.trace.parts import REJECTED
from concur_batch.trace.tables import tables_of
from concur_batch.trace.writer import recover

_LOCK = ".ending.lock"


def finish(run_dir: Path, stop: Callable[[], bool] = lambda: False) -> str | None:
    """Makes a run whose recorders have ended readable by any Parquet reader: stores what is left in the journal and
    merges the parts of each table into few. May be killed at any point and called again.

    Raises TraceError while rows are still in the journal: they are safe there. Returns why the parts were not merged,
    in one line, or None; the tables are whole with many parts too. `stop` ends the merging early.
    """
    with locked(run_dir / _LOCK) as alone:
        if not alone:
            raise TraceError(f"another process is finishing {run_dir}; wait for it")
        if live := recover(run_dir).live_segments:
            raise TraceError(f"{live} journals of {run_dir} belong to a living recorder; end its run first")
        try:
            compact(tables_of(run_dir), stop=stop)
        except TraceError as error:
            return str(error)
        finally:
            forget_intents(run_dir)
            for directory in (JOURNAL, REJECTED):  # the latter stays if anything is in it
                with suppress(OSError):
                    (run_dir / directory).rmdir()
        return None
