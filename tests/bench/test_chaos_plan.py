"""What is drawn for runs that faults befall, and how what they leave is compared: the pure half of `make chaos`."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.bench.chaos.comparison import Differences, Record, TurnKey, compare
from concur_batch.bench.chaos.outcome import Outcome, outcome_of, table_of
from concur_batch.bench.chaos.plan import ENDING, KINDS, cover, draw

FIRST, SECOND = ((1, 2), (3,)), ((4,), (5, 6))
RECORD = Record(
    ends={"a": ("finished", 1.0), "b": ("finished", 0.0)},
    ids={"a": (FIRST, SECOND), "b": (FIRST,)},
    steps={"a": (("turns", 0), ("turns", 1)), "b": (("turns", 0),)},
    workspaces={"a": {"file": (0o100644, b"text")}, "b": {"link": (0o120777, "file")}},
    turns={TurnKey("a", 0, 0): FIRST, TurnKey("a", 0, 1): SECOND, TurnKey("b", 0, 0): FIRST},
    doubled=0,
)
OUTCOME = Outcome(
    number=7,
    struck=("host", "driver", "host"),
    told=("host, 10% of the turns (3)", "driver, 40% of the turns (9)", "host, 1.0 s after the start (9)"),
    missed=(),
    exit_codes=(-9, 0),
    on_record=(9, 20),
    seconds=12.5,
    differences=Differences(),
    orphans=0,
    problems=(),
)


@given(st.integers(0, 50), st.integers(0, 20))
def test_each_kind_comes_first_once_in_a_cycle_and_a_seed_decides_all(seed: int, cycle: int) -> None:
    numbers = range(cycle * len(KINDS), (cycle + 1) * len(KINDS))
    plans = [draw(seed, number) for number in numbers]
    assert plans == [draw(seed, number) for number in numbers]
    first = Counter(fault.kind for plan in plans for fault in plan[0])
    assert all(first[kind] >= 1 for kind in KINDS)
    for plan in plans:
        for life in plan:
            assert [fault.moment.order for fault in life] == sorted(fault.moment.order for fault in life)
            assert [fault.kind in ENDING for fault in life] == sorted(fault.kind in ENDING for fault in life)


@given(st.integers(0, 50), st.integers(1, 10))
def test_a_cover_has_each_kind_once_and_nothing_after_what_ends_a_command(seed: int, runs: int) -> None:
    plans = cover(seed, runs)
    assert len(plans) == runs
    assert Counter(fault.kind for plan in plans for life in plan for fault in life) == Counter(KINDS)
    for plan in plans:
        for number, life in enumerate(plan):
            ends = [fault.kind in ENDING for fault in life]
            assert not any(ends[:-1])
            assert ends[-1] or number == len(plan) - 1, "the next command would not begin"


def test_a_kind_that_cannot_be_had_is_not_drawn() -> None:
    kinds = [kind for kind in KINDS if kind != "disk full"]
    drawn = {fault.kind for number in range(60) for life in draw(1, number, kinds) for fault in life}
    assert drawn == set(kinds)


def test_the_same_record_has_no_differences() -> None:
    assert compare(RECORD, RECORD, RECORD.turns) == Differences()
    failed = TurnKey("a", 0, 0)
    again = replace(RECORD, turns={**RECORD.turns, TurnKey("a", 1, 0): FIRST})
    assert compare(RECORD, again, {failed: FIRST}).none, "an attempt that failed is no difference"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"turns": {TurnKey("a", 0, 0): FIRST, TurnKey("b", 0, 0): FIRST}}, Differences(lost=1)),
        ({"turns": {**RECORD.turns, TurnKey("a", 0, 1): FIRST}}, Differences(lost=1)),
        ({"doubled": 2}, Differences(doubled=2)),
        ({"ids": {"a": (FIRST, FIRST), "b": (FIRST,)}}, Differences(ids=1)),
        ({"ends": {"a": ("finished", None), "b": ("finished", 0.0)}}, Differences(results=1)),
        ({"ends": {"a": ("finished", 1.0)}, "steps": {"a": RECORD.steps["a"]}}, Differences(results=1)),
        ({"workspaces": {**RECORD.workspaces, "a": {"file": (0o100600, b"text")}}}, Differences(workspaces=1)),
        ({"workspaces": {**RECORD.workspaces, "c": {}}}, Differences(workspaces=1)),
    ],
)
def test_each_difference_is_counted_where_it_belongs(changed: dict[str, object], expected: Differences) -> None:
    found = compare(RECORD, replace(RECORD, **changed), RECORD.turns)  # type: ignore[arg-type]
    assert (found, found.none) == (expected, False)


def test_an_outcome_is_read_back_and_only_a_whole_one_is_good() -> None:
    assert outcome_of(OUTCOME.to_json()) == OUTCOME
    assert (OUTCOME.good, OUTCOME.resumes) == (True, 1)
    assert OUTCOME.line().endswith("turns on record (exit code) 9 (-9), 20 (0) | 12 s | equal")
    wrong = replace(OUTCOME, differences=Differences(lost=2), orphans=1, problems=("its status is failed",))
    assert not wrong.good
    assert wrong.line().endswith("NOT EQUAL: lost 2; orphans 1; its status is failed")


def test_the_table_has_a_row_a_kind_and_one_of_all() -> None:
    table = table_of([OUTCOME, replace(OUTCOME, number=8, struck=("driver",), differences=Differences(ids=3))])
    names, *columns = ([*column.cells] for column in table.columns)
    rows = {str(name): [str(cell) for cell in row] for name, *row in zip(names, *columns, strict=True)}
    assert list(rows) == [*KINDS, "all"]
    assert rows["host"] == ["1", "2", "1", "0", "0", "0", "0", "0", "0"]
    assert rows["driver"] == ["2", "2", "2", "0", "0", "3", "0", "0", "0"]
    assert rows["raylet"] == ["0"] * 9
    assert rows["all"] == ["2", "4", "2", "0", "0", "3", "0", "0", "0"]
