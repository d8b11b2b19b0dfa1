"""Which agents are exported, told from their final rows alone. Pure: DuckDB has no files and no network here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from concur_batch.trace.schema import AGENTS

# What is kept of the rows: who it is, and what decides their order and how much they weigh.
COLUMNS = ("agent_id", "task_id", "sample", "attempt", "reward", "turns", "context_tokens")
_RANGE = re.compile(r"([0-9]*):([0-9]*)")
_NUMBER = "concur_row"  # the column of the row's number; no name of a column is like it
_STAGES = ("status", "reward", "turns", "tokens", "task", "no turns", "where")  # what the reasons begin with


class Range(NamedTuple):
    """From `least` to `most`, both within; None leaves that end open."""

    least: int | None
    most: int | None

    def __str__(self) -> str:
        return ":".join("" if bound is None else str(bound) for bound in self)


def read_range(text: str) -> Range:
    """`2:10`, `2:` or `:10`. Raises ValueError with the mend."""
    found = _RANGE.fullmatch(text)
    if found is None or text == ":":
        raise ValueError("give MIN:MAX, MIN: or :MAX, as 2:10")
    least, most = (int(bound) if bound else None for bound in found.groups())
    if least is not None and most is not None and least > most:
        raise ValueError(f"nothing is from {least} to {most}; give the smaller one first")
    return Range(least, most)


class BadExpression(ValueError):
    """DuckDB cannot evaluate the expression; the message is its reason, in one line."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What an agent's final row must be like. It is dropped for the first that it fails, in the order of the fields.

    `tokens` is of its whole history. `tasks` are shell patterns for the task's id: one must match, and none of those
    that begin with `!`. `where` is an SQL expression over the columns of `agents`, evaluated by DuckDB for those rows
    that are left by then; null is not true.
    """

    statuses: tuple[str, ...] = ("finished",)
    reward_min: float | None = None
    turns: Range | None = None
    tokens: Range | None = None
    tasks: tuple[str, ...] = ()
    where: str | None = None

    def reasons(self, rows: pa.RecordBatch) -> pa.Array:
        """Why each of these final rows is dropped; null for those that are not. Raises BadExpression."""
        found = pa.nulls(rows.num_rows, pa.string())
        for reason, kept in self._checks(rows):
            found = pc.if_else(pc.or_(pc.is_valid(found), kept), found, reason)
        if self.where is not None:
            left = pc.indices_nonzero(pc.is_null(found))
            passed = left.take(_passing(rows.take(left), self.where))
            dropped = pc.and_(pc.is_null(found), pc.invert(pc.is_in(_numbers(rows), passed)))
            found = pc.if_else(dropped, "where is not true", found)
        return found

    def check(self) -> None:
        """Raises BadExpression if `where` cannot be evaluated whatever the rows are."""
        if self.where is not None:
            _passing(pa.RecordBatch.from_pylist([], AGENTS), self.where)

    def _checks(self, rows: pa.RecordBatch) -> Iterator[tuple[pa.Array | str, pa.Array]]:
        """One after the other: the reason, and whether a row passes."""
        status = rows["status"]
        yield (
            pc.binary_join_element_wise("status", status, " "),
            pc.is_in(status, pa.array(self.statuses, pa.string())),
        )
        if self.reward_min is not None:
            enough = pc.fill_null(pc.greater_equal(rows["reward"], self.reward_min), False)
            yield f"reward below {self.reward_min:g}, or none", enough
        for name, column, wanted in (("turns", "turns", self.turns), ("tokens", "context_tokens", self.tokens)):
            if wanted is not None:
                yield f"{name} not in {wanted}", _within(rows[column], wanted)
        if self.tasks:
            tasks = pc.unique(rows["task_id"]).to_pylist()
            wanted_tasks = pa.array([task for task in tasks if self._wants(task)], pa.string())
            yield "task not asked for", pc.is_in(rows["task_id"], wanted_tasks)
        yield "no turns", pc.greater(rows["turns"], 0)

    def _wants(self, task: str) -> bool:
        asked = [pattern for pattern in self.tasks if not pattern.startswith("!")]
        if asked and not any(fnmatchcase(task, pattern) for pattern in asked):
            return False
        return not any(fnmatchcase(task, pattern[1:]) for pattern in self.tasks if pattern.startswith("!"))


def in_order(rows: pa.Table) -> pa.Table:
    """Rows of COLUMNS and the number of their `run`, task by task by its id, and of a task the best first: by reward
    (none is last), then fewer tokens, then sample, then run."""
    return rows.sort_by(
        [
            ("task_id", "ascending"),
            ("reward", "descending"),
            ("context_tokens", "ascending"),
            ("sample", "ascending"),
            ("run", "ascending"),
        ]
    )


def stage(reason: str) -> int:
    """The place of a reason in the order in which rows are checked."""
    return next(number for number, name in enumerate(_STAGES) if reason.startswith(name))


def _within(values: pa.Array, wanted: Range) -> pa.Array:
    least = pc.greater_equal(values, -1 if wanted.least is None else wanted.least)
    return least if wanted.most is None else pc.and_(least, pc.less_equal(values, wanted.most))


def _numbers(rows: pa.RecordBatch) -> pa.Array:
    return pa.array(range(rows.num_rows), pa.uint64())


def _passing(rows: pa.RecordBatch, where: str) -> pa.Array:
    """The numbers of the rows for which the expression is true. Raises BadExpression."""
    numbered = pa.Table.from_batches([rows]).append_column(_NUMBER, _numbers(rows))
    with duckdb.connect(":memory:") as connection:
        # What somebody else has written may be tried without fear: it reads the row, and nothing else.
        connection.execute("set enable_external_access = false")
        connection.execute("set python_enable_replacements = false")
        connection.execute("set lock_configuration = true")
        try:
            # As a filter of a relation it can be nothing but one expression, whatever parentheses it has.
            passed = connection.from_arrow(numbered).filter(where).project(_NUMBER).fetchall()
        except duckdb.Error as error:
            raise BadExpression(" ".join(str(error).partition("\nLINE ")[0].split())) from None
    return pa.array([number for (number,) in passed], pa.uint64())
