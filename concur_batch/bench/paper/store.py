"""`results.parquet`: one row for each cell of each table and each seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from concur_batch.trace.files import replacing

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("table", "row", "system")),
        ("seed", pa.int64()),
        *((name, pa.float64()) for name in ("simulated_seconds", "paper_seconds", "simulated_hit_rate")),
        *((name, pa.float64()) for name in ("paper_hit_rate", "log_error", "device_hit_rate", "host_hit_rate")),
        *((name, pa.int64()) for name in ("looked_up_tokens", "computed_tokens", "recomputed_tokens")),
        *((name, pa.int64()) for name in ("evicted_tokens", "retractions")),
        ("window_mean", pa.float64()),
        *((name, pa.int64()) for name in ("increases", "cuts")),
    ],
    metadata={"simulated": "true"},
)


def write_results(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the file, whole or not at all. Raises TraceError."""
    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=SCHEMA), temporary)
