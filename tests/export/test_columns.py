"""Columns of JSON in Parquet: what is put in comes back, and nothing besides."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.export.columns import JSON, as_batch
from concur_batch.export.messages import Messages
from tests.agent.rollout_desk import SUBMIT, WORK
from tests.export.stories import retelling, story

SCHEMA = pa.schema([pa.field("n", pa.int32()), pa.field("value", JSON)])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def written(records: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """The records, by way of a Parquet file."""
    file = io.BytesIO()
    pa.parquet.write_table(pa.Table.from_batches([as_batch(records, schema)]), file)
    return pa.parquet.read_table(file)


@given(st.lists(VALUES, max_size=6))
def test_any_json_comes_back_from_parquet(values: list[Any]) -> None:
    table = written([{"n": number, "value": value} for number, value in enumerate(values)], SCHEMA)
    assert table.schema.field("value").type == JSON
    texts = table["value"].combine_chunks().cast(pa.string()).to_pylist() if values else []
    assert [None if text is None else json.loads(text) for text in texts] == values


async def test_messages_without_calls_have_no_tool_calls_after_parquet(tmp_path: Path) -> None:
    """Row 12: as a struct, every message would have the keys of all, null where it had none."""
    records = [dict(record) for record in Messages(retelling()).records(await story(WORK, SUBMIT))]
    file = tmp_path / "train.parquet"
    pa.parquet.write_table(pa.Table.from_batches([as_batch(records, Messages.schema)]), file)

    (text,) = pa.parquet.read_table(file)["messages"].combine_chunks().cast(pa.string()).to_pylist()
    assert json.loads(text) == records[0]["messages"]
    found = duckdb.sql(
        f"select json_array_length(messages), messages->'$[1]', messages->>'$[2].tool_calls[0].function.name', "
        f"tools->>'$[1].function.name', typeof(messages) from '{file}'"
    ).fetchall()
    assert found == [(5, '{"role":"user","content":"Do it."}', "work", "submit", "JSON")]
