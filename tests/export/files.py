"""Files of an export, each of one format whole: what `concur export` writes in shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet

from concur_batch.export.columns import as_batch
from concur_batch.export.form import Form
from concur_batch.export.forms import FORMS
from concur_batch.export.trajectory import Trajectory
from concur_batch.trace.reading import Run


def write_files(run: Run, told: Sequence[Trajectory], directory: Path) -> tuple[dict[str, list[Any]], dict[str, Form]]:
    """`<format>.parquet` and `<format>.jsonl` of every format; the records and the formats, by name."""
    directory.mkdir(parents=True)
    forms = {name: make(run, "split") for name, make in FORMS.items()}
    records = {
        name: [dict(record) for trajectory in told for record in form.records(trajectory)]
        for name, form in forms.items()
    }
    for name, form in forms.items():
        batch = as_batch(records[name], form.schema)
        pa.parquet.write_table(pa.Table.from_batches([batch]), directory / f"{name}.parquet")
        option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
        lines = [orjson.dumps(record, option=option) for record in records[name]]
        (directory / f"{name}.jsonl").write_bytes(b"".join(lines))
    return records, forms
