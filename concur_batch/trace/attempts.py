"""The rows of single attempts of agents, in the order in which they were made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
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
    lists = [field.name for field in table.schema if pa.types.is_list(field.type)]
    rows: list[dict[str, Any]] = table.drop_columns(lists).to_pylist()
    for name in lists:
        first = 0
        for chunk in table[name].chunks:
            ends, items = chunk.offsets.to_numpy(), chunk.values.to_numpy(zero_copy_only=False)
            there = chunk.is_valid().to_numpy(zero_copy_only=False)
            for index in range(len(chunk)):
                rows[first + index][name] = items[ends[index] : ends[index + 1]] if there[index] else None
            first += len(chunk)
    return rows
