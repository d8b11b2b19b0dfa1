"""The rows of single attempts of agents, in the order in which they were made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from concur_batch.trace.reading import Run

Row = Mapping[str, Any]
Key = tuple[str, int]
"""An agent's id and an attempt's number."""


def rows_of_attempts(
    run: Run, table: str, columns: Sequence[str] | None, attempts: Collection[Key]
) -> dict[Key, list[Row]]:
    """The rows of these attempts in `turns` or `tools`, in the order of turns and calls; lists are numpy arrays.

    `columns` hold the agent's id and the attempt, and what the order is by. Raises TraceError.
    """
    order = [("turn", "ascending"), *([("call", "ascending")] if table == "tools" else [])]
    wanted = frozenset(attempts)
    found = run.table(table, columns, pc.field("agent_id").isin(sorted({agent for agent, _ in wanted})))
    rows: dict[Key, list[Row]] = defaultdict(list)
    for row in rows_of(found.sort_by(order)):
        key = (row["agent_id"], row["attempt"])
        if key in wanted:
            rows[key].append(row)
    return rows


def keys_of(rows: pa.Table, attempts: Collection[Key]) -> pa.ChunkedArray:
    """For each row whether it is of one of these attempts."""
    keys = pc.binary_join_element_wise(rows["attempt"].cast(pa.string()), rows["agent_id"], " ")
    return pc.is_in(keys, pa.array([f"{attempt} {agent}" for agent, attempt in attempts], pa.string()))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as they are in Python, but lists as numpy arrays, which are views of the table's memory."""
    columns = [_values(column) for column in table.columns]
    return [dict(zip(table.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Arrow's own `to_pylist` takes longer by far: a turn has forty columns, and a run has millions of turns."""
    kind = column.type
    if pa.types.is_list(kind):
        return [items for chunk in column.chunks for items in _arrays(chunk)]
    if column.null_count == len(column):
        return [None] * len(column)
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


def _arrays(lists: pa.ListArray) -> list[Any]:
    """Each list as an array, None for null."""
    ends, items = lists.offsets.to_numpy().tolist(), lists.values.to_numpy(zero_copy_only=False)
    there = lists.is_valid().to_numpy(zero_copy_only=False).tolist()
    return [items[start:end] if valid else None for valid, (start, end) in zip(there, pairwise(ends), strict=True)]
