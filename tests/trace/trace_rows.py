"""Rows for the tests of the trace: worked ones, and hypothesis strategies made from the schemas."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from hypothesis import strategies as st

from concur_batch.trace.schema import SCHEMAS


def plain_row(table: str, **values: Any) -> dict[str, Any]:
    """A row with a plain value in each column that cannot be null, and the given values."""
    row: dict[str, Any] = {}
    for field in SCHEMAS[table]:
        if not field.nullable:
            row[field.name] = _plain(field.type)
    return row | values


def turn(agent: str, number: int, ids: list[int] | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A turn of an agent with `number % 3` tool calls."""
    key = {"agent_id": agent, "turn": number}
    tools = [plain_row("tools", **key, call=call) for call in range(number % 3)]
    return plain_row("turns", **key, input_delta_ids=[number] if ids is None else ids), tools


def part_rows(run_dir: Path, table: str) -> list[dict[str, Any]]:
    """All rows of a table in Parquet, by part."""
    parts = sorted((run_dir / table).glob("*.parquet"))
    return [row for part in parts for row in pa.parquet.read_table(part).to_pylist()]


def _plain(type_: pa.DataType) -> Any:
    if pa.types.is_integer(type_):
        return 7
    if pa.types.is_floating(type_):
        return 0.1
    if pa.types.is_boolean(type_):
        return False
    if pa.types.is_string(type_):
        return "text"
    if pa.types.is_timestamp(type_):
        return datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    return [1, 2, 3]


def rows(table: str) -> st.SearchStrategy[dict[str, Any]]:
    """Any row that the schema can hold, nullable columns null or left out at times."""
    required = {f.name: _values(f.type) for f in SCHEMAS[table] if not f.nullable}
    optional = {f.name: st.none() | _values(f.type) for f in SCHEMAS[table] if f.nullable}
    return st.fixed_dictionaries(required, optional=optional)


def _values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(type_):
        return st.integers(-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1)
    if pa.types.is_floating(type_):
        return st.floats(allow_nan=False, allow_infinity=False)
    if pa.types.is_boolean(type_):
        return st.booleans()
    if pa.types.is_string(type_):
        return st.text() | st.sampled_from(["", "\0", 'a\nb\r\t"\\ ', "\u2028", "😀", "\U0010ffff", "null", "﻿x"])
    if pa.types.is_timestamp(type_):
        return st.datetimes(timezones=st.just(UTC))
    if type_.value_type == pa.int32():
        ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20)
        return ids | ids.map(lambda ids: np.array(ids, np.int32)) | ids.map(lambda ids: np.array(ids, np.int64))
    floats = st.lists(st.none() | st.floats(width=32, allow_nan=False), max_size=20)
    return floats | st.lists(st.floats(width=32, allow_nan=False)).map(lambda items: np.array(items, np.float32))


def as_stored(table: str, row: dict[str, Any]) -> dict[str, Any]:
    """What Parquet should give back for a row: every column, lists as lists."""
    stored = {}
    for name in SCHEMAS[table].names:
        value = row.get(name)
        stored[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return stored
