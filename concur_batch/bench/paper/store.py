"""`results.parquet`: a row for each cell of each table and each seed; `series.parquet`: one for each control period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from concur_batch.trace.files import replacing

RESULTS = pa.schema(
    [
        *((name, pa.string()) for name in ("table", "row", "system")),
        ("seed", pa.int64()),
        *((name, pa.float64()) for name in ("simulated_seconds", "paper_seconds", "simulated_hit_rate")),
        *((name, pa.float64()) for name in ("paper_hit_rate", "log_error", "device_hit_rate", "host_hit_rate")),
        *((name, pa.int64()) for name in ("looked_up_tokens", "computed_tokens", "recomputed_tokens")),
        *((name, pa.int64()) for name in ("evicted_tokens", "retractions")),
        ("window_mean", pa.float64()),
        *((name, pa.int64()) for name in ("increases", "cuts")),
        *((f"{part}_share", pa.float64()) for part in ("tool", "decode", "first_prefill", "recomputation")),
    ],
    metadata={"simulated": "true"},
)
SERIES = pa.schema(
    [
        *((name, pa.string()) for name in ("row", "system")),
        ("seed", pa.int64()),
        *((name, pa.float64()) for name in ("seconds", "usage", "occupancy", "hit_rate")),
        *((name, pa.int64()) for name in ("window_after", "finished")),
    ],
    metadata={"simulated": "true"},
)


def write_results(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the figures of the cells (results.Results.rows), whole or not at all. Raises TraceError."""
    _write(path, rows, RESULTS)


def write_series(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the control periods (results.Results.series), whole or not at all. Raises TraceError."""
    _write(path, rows, SERIES)


def _write(path: Path, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), temporary)
