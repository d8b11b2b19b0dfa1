"""Which differences of work are found, named and told, and that nothing else counts as one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.bench.same_work import COUNTS, FIELDS, Agent, Change, same_work
from concur_batch.trace.schema import AGENTS

STATUSES = ("finished", "limit", "failed", "cancelled")
AgentRow = dict[str, Any]
AGENT_KEYS = st.tuples(st.sampled_from(["a", "b", "a/0"]), st.integers(0, 3))
WORK = st.fixed_dictionaries(
    {**{name: st.integers(0, 3) for name in COUNTS}, "status": st.sampled_from(STATUSES), "seconds": st.floats(0, 9)}
)


def row(task_id: str, sample: int = 0, **changes: Any) -> AgentRow:
    work = {"turns": 5, "input_tokens": 4000, "output_tokens": 300, "tool_calls": 4, "status": "finished"}
    return {"task_id": task_id, "sample": sample, "final": True, **work, **changes}


@st.composite
def runs(draw: st.DrawFn, least: int = 0) -> list[AgentRow]:
    """The agents rows of one run, with attempts that were tried again among them."""
    agents = draw(st.dictionaries(AGENT_KEYS, WORK, min_size=least, max_size=6))
    final = [row(*agent, **work) for agent, work in agents.items()]
    tried_again = [row(*agent, final=False, **draw(WORK)) for agent in agents if draw(st.booleans())]
    return draw(st.permutations([*final, *tried_again]))


def final(rows: list[AgentRow]) -> list[AgentRow]:
    return [row for row in rows if row["final"]]


def test_the_fields_are_columns_of_the_agents_table() -> None:
    assert {"task_id", "sample", "final", *FIELDS} <= set(AGENTS.names)


def test_a_worked_example() -> None:
    first = [row("a"), row("b"), row("b", 1), row("c"), row("d")]
    second = [
        row("d", turns=4, tool_calls=3, status="limit"),
        row("a", input_tokens=5000),
        row("b"),
        row("e"),
        row("b", 1, input_tokens=3999),
    ]
    found = same_work(first, second)
    assert not found.same
    assert found.only_first == (Agent("c", 0),)
    assert found.only_second == (Agent("e", 0),)
    assert found.changes == (
        Change(Agent("a", 0), "input_tokens", 4000, 5000),
        Change(Agent("b", 1), "input_tokens", 4000, 3999),
        Change(Agent("d", 0), "turns", 5, 4),
        Change(Agent("d", 0), "tool_calls", 4, 3),
        Change(Agent("d", 0), "status", "finished", "limit"),
    )
    assert found.first_totals == {
        "agents": 5, "turns": 25, "input_tokens": 20_000, "output_tokens": 1500, "tool_calls": 20
    }  # fmt: skip
    assert found.second_totals == {
        "agents": 5, "turns": 24, "input_tokens": 20_999, "output_tokens": 1500, "tool_calls": 19
    }  # fmt: skip
    assert found.lines(limit=1) == [
        "1 agent only in the first run: c/0",
        "1 agent only in the second run: e/0",
        "1 agent with other turns (totals 25 and 24): d/0 5 and 4",
        "2 agents with other input_tokens (totals 20,000 and 20,999): a/0 4,000 and 5,000, 1 more",
        "1 agent with other tool_calls (totals 20 and 19): d/0 4 and 3",
        "1 agent with other status: d/0 finished and limit",
    ]


def test_equal_totals_are_not_the_same_work() -> None:
    found = same_work([row("a", turns=4), row("b", turns=6)], [row("a", turns=6), row("b", turns=4)])
    assert found.first_totals == found.second_totals
    assert [change.agent.task_id for change in found.changes] == ["a", "b"]
    assert not found.same


def test_lines_stay_short_however_many_agents_differ() -> None:
    first = [row("a", sample) for sample in range(1200)]
    second = [row("a", sample, status="failed") for sample in range(1200)]
    told = "a/0 finished and failed, a/1 finished and failed"
    assert same_work(first, second).lines(limit=2) == [f"1,200 agents with other status: {told}, 1,198 more"]
    assert same_work(first, []).lines() == ["1,200 agents only in the first run: a/0, a/1, a/2, 1,197 more"]


def test_what_a_policy_may_change_is_no_difference() -> None:
    cached = row("a", cached_device_tokens=3500, recomputed_tokens=0, ended_seconds=1.0, pauses=0, attempt=0)
    computed = row("a", cached_device_tokens=0, recomputed_tokens=3500, ended_seconds=9.0, pauses=2, attempt=1)
    assert same_work([cached], [computed]).same


@pytest.mark.parametrize("run", ["first", "second"])
def test_two_final_rows_of_one_agent_are_refused(run: str) -> None:
    twice = [row("a", 1), row("a"), row("a", 1)]
    with pytest.raises(ValueError, match=f"the {run} run has two final rows of agent a/1"):
        same_work(*((twice, [row("a")]) if run == "first" else ([row("a")], twice)))


def test_a_missing_column_is_never_taken_for_equal() -> None:
    short = {name: value for name, value in row("a").items() if name != "tool_calls"}
    with pytest.raises(KeyError, match="tool_calls"):
        same_work([short], [short])


@given(st.data(), runs())
def test_a_run_did_its_own_work_in_any_order_and_attempts_tried_again_do_not_count(
    data: st.DataObject, rows: list[AgentRow]
) -> None:
    found = same_work(rows, data.draw(st.permutations(final(rows))))
    assert found.same
    assert found.lines() == []
    assert found.first_totals == found.second_totals
    assert found.first_totals["agents"] == len(final(rows))


@given(st.data(), runs(), runs())
def test_the_order_of_rows_changes_nothing(data: st.DataObject, first: list[AgentRow], second: list[AgentRow]) -> None:
    shuffled = same_work(data.draw(st.permutations(first)), data.draw(st.permutations(second)))
    assert shuffled == same_work(first, second)


@given(runs(), runs())
def test_swapping_the_runs_swaps_the_difference(first: list[AgentRow], second: list[AgentRow]) -> None:
    there, back = same_work(first, second), same_work(second, first)
    assert (back.only_first, back.only_second) == (there.only_second, there.only_first)
    assert (back.first_totals, back.second_totals) == (there.second_totals, there.first_totals)
    assert back.changes == tuple(Change(one.agent, one.field, one.second, one.first) for one in there.changes)
    assert back.same == there.same == (not there.lines())


@given(st.data(), runs(least=1), st.sampled_from(FIELDS))
def test_one_changed_field_of_one_agent_is_found_and_named(
    data: st.DataObject, rows: list[AgentRow], field: str
) -> None:
    old = data.draw(st.sampled_from(final(rows)))
    values = st.sampled_from(STATUSES) if field == "status" else st.integers(0, 9)
    value = data.draw(values.filter(lambda value: value != old[field]))
    found = same_work(rows, [{**one, field: value} if one is old else one for one in rows])
    assert found.changes == (Change(Agent(old["task_id"], old["sample"]), field, old[field], value),)
    assert found.only_first == found.only_second == ()
    assert not found.same
    (line,) = found.lines()
    assert field in line
    assert f"{old['task_id']}/{old['sample']} {old[field]} and {value}" in line


@given(st.data(), runs(least=1))
def test_missing_agents_are_found_even_if_an_attempt_of_theirs_is_there(
    data: st.DataObject, rows: list[AgentRow]
) -> None:
    kept = data.draw(st.lists(st.sampled_from(final(rows)), unique_by=lambda one: (one["task_id"], one["sample"])))
    rest = [one for one in rows if not one["final"] or one in kept]
    missing = {(one["task_id"], one["sample"]) for one in final(rows) if one not in kept}
    found = same_work(rows, rest)
    assert (set(found.only_first), found.only_second, found.changes) == (missing, (), ())
    assert found.same == (not missing)
    assert found.second_totals["agents"] == len(kept)
