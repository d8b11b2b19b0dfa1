"""Records as Arrow: what Parquet needs to know of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from concur_batch.export.form import Record
from concur_batch.export.trajectory import Trajectory

JSON = pa.json_()
"""A column of any JSON values. Parquet stores their text and says that it is JSON: `datasets` (from 4.7 on) and DuckDB
give back what was put in. As a struct, each message would have every key that any has, null where it had none."""

# Where a record is from, and what became of it. No name here is one that a trainer reads.
SOURCE = [
    pa.field("run", pa.string(), nullable=False),
    pa.field("agent_id", pa.string(), nullable=False),
    pa.field("task_id", pa.string(), nullable=False),
    pa.field("sample", pa.int32(), nullable=False),
    pa.field("status", pa.string(), nullable=False),
    pa.field("end_reason", pa.string(), nullable=False),
    pa.field("reward", pa.float64()),
    pa.field("segment", pa.int32(), nullable=False),  # of a trajectory whose history was rewritten, else 0
    pa.field("truncated", pa.bool_(), nullable=False),  # its last turn was cut by a token limit
]
_OF_AGENT = ("agent_id", "task_id", "sample", "status", "end_reason", "reward")


def source_of(trajectory: Trajectory, segment: int, last: int) -> dict[str, Any]:
    """The values of SOURCE for a segment that ends with the turn `last`."""
    return {
        "run": trajectory.run,
        **{name: trajectory.agent[name] for name in _OF_AGENT},
        "segment": segment,
        "truncated": trajectory.turns[last].row["action"] == "truncated",
    }


def as_batch(records: Sequence[Record], schema: pa.Schema) -> pa.RecordBatch:
    """Records of a form with this schema; values of columns of JSON become text, those of others are as they are."""
    return pa.RecordBatch.from_arrays([_column(field, records) for field in schema], schema=schema)


def _column(field: pa.Field, records: Sequence[Record]) -> pa.Array:
    values = [record[field.name] for record in records]
    if field.type != JSON:
        return pa.array(values, field.type)
    texts = [
        None if value is None else orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode() for value in values
    ]
    return pa.ExtensionArray.from_storage(JSON, pa.array(texts, JSON.storage_type))
