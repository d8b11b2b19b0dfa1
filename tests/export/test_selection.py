from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.export.selection import COLUMNS, BadExpression, Range, Selection, in_order, read_range, stage
from concur_batch.trace.schema import AGENTS
from tests.export.exported_runs import agent


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), AGENTS)


def reasons(selection: Selection, *rows: dict[str, Any]) -> list[str | None]:
    found: list[str | None] = selection.reasons(batch(*rows)).to_pylist()
    return found


def test_a_row_is_dropped_for_the_first_that_it_fails() -> None:
    selection = Selection(
        statuses=("finished", "limit"), reward_min=0.5, turns=Range(2, 4), tokens=Range(None, 20), tasks=("math-*",),
        where="end_reason <> 'length'",
    )  # fmt: skip
    found = reasons(
        selection,
        agent("math-1", reward=1.0),
        agent("math-2", reward=0.5, status="limit", end_reason="turns"),
        agent("math-3", reward=0.0, status="failed"),
        agent("math-4", reward=0.4, turns=9),
        agent("math-5"),
        agent("math-6", reward=1.0, turns=1),
        agent("math-7", reward=1.0, turns=4),
        agent("code-1", reward=1.0),
        agent("math-8", reward=1.0, status="limit", end_reason="length"),
    )
    assert found == [
        None,
        None,
        "status failed",
        "reward below 0.5, or none",
        "reward below 0.5, or none",
        "turns not in 2:4",
        "tokens not in :20",
        "task not asked for",
        "where is not true",
    ]
    order = [stage(reason) for reason in found if reason is not None]
    assert order == sorted(order)


def test_an_agent_that_never_spoke_has_no_trajectory() -> None:
    assert reasons(Selection(("limit",)), agent("t", status="limit", turns=0)) == ["no turns"]


def test_patterns_ask_for_tasks_and_leave_some_out() -> None:
    rows = [agent(task) for task in ("a/x", "a/y", "b", "[c]")]

    def kept(*patterns: str) -> list[str]:
        found = reasons(Selection(tasks=patterns), *rows)
        return [row["task_id"] for row, reason in zip(rows, found, strict=True) if reason is None]

    assert kept("a*") == ["a/x", "a/y"]  # a slash is a character as any other
    assert kept("a*", "b") == ["a/x", "a/y", "b"]
    assert kept("!a/y") == ["a/x", "b", "[c]"]
    assert kept("a*", "!*y") == ["a/x"]
    assert kept("[[]c]") == ["[c]"]
    assert kept("A*") == []


def test_where_is_asked_only_of_rows_that_are_left() -> None:
    rows = [agent("a", answer="12"), agent("b", answer="none", status="failed"), agent("c", answer=None)]
    assert reasons(Selection(where="answer::int > 10"), *rows) == [None, "status failed", "where is not true"]


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("colour = 1", "colour"),
        ("reward >", "syntax error"),
        ("", "without selection list"),
        ("true; select 1", "modifiers in the expression"),
        ("true) or (1 = 1", "syntax error"),
        ("count(*) > 1", "aggregate"),
        ("answer::int > 3", "convert string 'many' to INT32"),
        ("exists (select * from read_text('{file}'))", "disabled"),
        ("exists (select * from '{file}')", "\\.csv"),
        ("exists (select * from secret_rows)", "secret_rows does not exist"),
    ],
)
def test_an_expression_that_is_none_is_told_and_touches_no_file(where: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text("a\n1\n")
    secret_rows = pa.table({"a": [1]})  # a variable of Python's, which DuckDB would find by its name
    with pytest.raises(BadExpression, match=reason) as caught:
        Selection(where=where.format(file=file)).reasons(batch(agent("t", answer="many")))
    assert "\n" not in str(caught.value) and str(caught.value)
    assert secret_rows.num_rows == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file.csv"]


def test_an_expression_is_checked_before_there_are_rows() -> None:
    Selection(where="reward > 0.5 and ended_at > '2026-01-01'").check()
    with pytest.raises(BadExpression, match="colour"):
        Selection(where="colour = 1").check()


ROWS = st.lists(
    st.builds(
        lambda task, status, reward, turns, tokens: agent(
            task, status=status, reward=reward, turns=turns, context_tokens=tokens
        ),
        st.sampled_from(["a1", "a2", "b"]),
        st.sampled_from(["finished", "limit", "failed"]),
        st.none() | st.floats(0, 1),
        st.integers(0, 5),
        st.integers(0, 50),
    ),
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(
    ROWS,
    st.sampled_from([("finished",), ("finished", "limit")]),
    st.none() | st.floats(0, 1),
    st.integers(0, 5),
    st.sampled_from([(), ("a*",), ("!b",)]),
)
def test_what_is_kept_is_what_the_rows_say(
    rows: list[dict[str, Any]], statuses: tuple[str, ...], reward_min: float | None, least: int, tasks: tuple[str, ...]
) -> None:
    selection = Selection(statuses, reward_min, Range(least, None), Range(None, 40), tasks, "turns % 2 = 0")
    kept = [
        row["status"] in statuses
        and (reward_min is None or (row["reward"] is not None and row["reward"] >= reward_min))
        and row["turns"] >= max(1, least)
        and row["context_tokens"] <= 40
        and all(fnmatchcase(row["task_id"], pattern.lstrip("!")) != pattern.startswith("!") for pattern in tasks)
        and row["turns"] % 2 == 0
        for row in rows
    ]
    assert [reason is None for reason in reasons(selection, *rows)] == kept


def test_the_best_of_a_task_comes_first() -> None:
    rows = [
        agent("b", 0, reward=1.0),
        agent("a", 0, reward=None),
        agent("a", 1, reward=0.5, turns=3),
        agent("a", 2, reward=0.5, turns=2),
        agent("a", 3, reward=0.5, turns=2),
        agent("a", 4, reward=1.0, turns=9),
    ]
    schema = pa.schema([*(AGENTS.field(name) for name in COLUMNS), pa.field("run", pa.int32())])
    table = pa.Table.from_pylist([{**row, "run": 0} for row in rows], schema)
    assert in_order(table)["agent_id"].to_pylist() == ["a/4", "a/2", "a/3", "a/1", "a/0", "b/0"]


def test_ranges_are_read() -> None:
    assert read_range("2:10") == Range(2, 10)
    assert read_range("2:") == Range(2, None)
    assert str(read_range(":10")) == ":10"
    assert read_range("3:3") == Range(3, 3)
    for wrong in ("", ":", "2", "2-10", "a:b", "-1:3", "10:2", "1:2:3"):
        with pytest.raises(ValueError, match="give"):
            read_range(wrong)
