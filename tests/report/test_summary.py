"""The figures of a run that are made of several tables, worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from concur_batch.report.summary import summarize
from concur_batch.trace.reading import Run
from concur_batch.trace.schema import CONTROL
from tests.cli.looked_at_run import write_run
from tests.trace.trace_rows import plain_row

Row = dict[str, Any]


def summary_of(path: Path, *control: Row) -> Row:
    """Of five agents with turns, one of which waited 0.5 s to be admitted and was paused for 2 s; and these rows."""
    run = write_run(path)
    rows = [plain_row("control", phase="middle", **{"paused_in_period": 0, **row}) for row in control]
    (run / "control").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, CONTROL), run / "control" / "0.parquet")
    return summarize(Run(run))


def test_pauses_and_waits(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "r")
    figures = ("pauses", "pauses_mean", "pauses_max", "longest_pause_seconds", "wait_gini")
    assert [summary[name] for name in figures] == [1, 0.2, 1, 2.0, 0.8]
    assert (summary["pausing_periods"], summary["footprint_share_mean"], summary["window_max"]) == (0, None, None)


def test_a_window_in_tokens_over_all_pools(tmp_path: Path) -> None:
    filled = [(1.0, "0", 20, 0), (1.0, "1", 100, 3), (2.0, "0", 120, 1), (2.0, "1", 60, 2), (3.0, "0", 30, 0)]
    rooms = [
        {"seconds": seconds, "pool": pool, "window_tokens": 100, "footprint_tokens": tokens, "paused_in_period": paused}
        for seconds, pool, tokens, paused in filled
    ]
    blind = {"seconds": 3.0, "pool": "1", "window_before": 16, "window_after": 16, "footprint_tokens": 999}
    summary = summary_of(tmp_path / "r", *rooms, blind)
    # 120 and 180 of 200, then 30 of 100.
    assert (summary["footprint_share_mean"], summary["footprint_share_max"]) == (0.6, 0.9)
    assert (summary["pausing_periods"], summary["window_max"], summary["pools"]) == (2, 16, 2)


def test_the_law_has_no_share(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "r", {"seconds": 1.0, "window_before": 4, "window_after": 2, "paused_in_period": 2})
    assert (summary["footprint_share_max"], summary["window_max"], summary["window_cuts"]) == (None, 2, 1)
    assert summary["pausing_periods"] == 1
