"""What becomes of each agent of a run that goes on, by what is on record of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.agent.spec import AgentSpec
from concur_batch.driver.past import (
    Begun,
    Past,
    account_of,
    calls_cut_off,
    going_on,
    life_of,
    read_past,
    seconds_of,
)
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.tables import Tables
from concur_batch.trace.withdrawal import withdraw
from concur_batch.trace.writer import Writer
from tests.trace.trace_rows import plain_row

A = AgentSpec("a/0", "a", 0, 1, "Do it.")


def gone_on(past: Past, attempts: int = 3) -> AgentSpec | None:
    found = going_on([A], past, attempts)
    return found[0] if found else None


@pytest.mark.parametrize(
    ("tried", "begun", "expected"),
    [
        ({}, {}, (0, 0, False)),
        ({}, {0: Begun(3, 2, "m")}, (0, 0, True)),
        ({0: "infrastructure"}, {0: Begun(3, 2, "m")}, (1, 1, False)),
        ({0: "infrastructure"}, {0: Begun(3, 2, "m"), 1: Begun(1, 0, "m")}, (1, 1, True)),
        ({}, {0: Begun(2, 2, "m")}, (1, 0, False)),  # a turn is missing
        ({}, {0: Begun(3, 2, None)}, (1, 0, False)),  # an older version's: who knows what the workspace was
        ({0: "infrastructure", 1: "infrastructure", 2: "infrastructure"}, {}, (3, 0, False)),  # taken back: as at first
        ({0: "model"}, {0: Begun(3, 2, "m")}, (1, 0, False)),
        ({0: "infrastructure", 1: "model", 2: "infrastructure"}, {}, (3, 1, False)),
    ],
)
def test_an_agent_goes_on_where_it_was_or_begins_the_next_attempt(
    tried: dict[int, str], begun: dict[int, Begun], expected: tuple[int, int, bool]
) -> None:
    past = Past({}, {"a/0": tried}, {("a/0", attempt): turns for attempt, turns in begun.items()})
    agent = gone_on(past)
    assert agent is not None
    assert (agent.attempt, agent.attempts_before, agent.goes_on) == expected


@given(
    st.dictionaries(st.integers(0, 5), st.sampled_from(["infrastructure", "model", None])),
    st.dictionaries(st.integers(0, 7), st.integers(1, 9)),
    st.integers(1, 4),
)
def test_no_number_of_an_attempt_is_used_twice(tried: dict[int, Any], begun: dict[int, int], attempts: int) -> None:
    turns = {("a/0", attempt): Begun(count, count - 1, "m") for attempt, count in begun.items()}
    agent = gone_on(Past({}, {"a/0": tried}, turns), attempts)
    assert agent is not None
    assert agent.attempt > max(tried, default=-1)
    assert agent.attempt >= max(begun, default=-1)
    assert agent.goes_on is (agent.attempt in begun)
    assert 0 <= agent.attempts_before < attempts


def recorded(run_dir: Path) -> Run:
    """Three agents: `a` has ended, `b` failed at its second attempt, `c` is under way."""
    write_manifest(run_dir, {"seconds": 7.0})
    writer = Writer(run_dir, "recorder0")

    def turn(agent: str, attempt: int, number: int, **more: Any) -> None:
        key = {"agent_id": agent, "attempt": attempt, "turn": number}
        row = plain_row("turns", **key, action="calls", tools_mark=f"m{number}", ended_seconds=float(number), **more)
        writer.append(encode_turn(row, [plain_row("tools", **key)]))

    def end(agent: str, attempt: int, **more: Any) -> None:
        writer.append(encode("agents", plain_row("agents", agent_id=agent, attempt=attempt, **more)))

    turn("a", 0, 0)
    turn("a", 0, 1)
    end("a", 0, final=True, status="finished", reward=0.5, ended_seconds=9.5)
    turn("b", 0, 0)
    end("b", 0, final=False, status="failed", failure_class="infrastructure")
    turn("b", 1, 0)
    writer.rotate()
    end("b", 1, final=True, status="failed", failure_class="infrastructure")
    for number in (2, 0, 1):
        turn("c", 0, number)
    writer.close()
    return Run(run_dir)


AGENTS = [AgentSpec(name, name, 0, 1, "") for name in "abcd"]


def test_the_past_is_read_from_the_tables_and_infrastructure_failures_are_taken_back(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    past = read_past(run)
    assert past.final == {"a": (0, None), "b": (1, "infrastructure")}
    assert past.begun["c", 0] == Begun(3, 2, "m2")
    assert [(agent.agent_id, agent.goes_on) for agent in going_on(AGENTS, past, 3)] == [("c", True), ("d", False)]
    assert seconds_of(run) == 9.5
    withdraw(Tables(tmp_path), past.failed({"infrastructure"}))
    past = read_past(run)
    assert dict(past.tried["b"]) == {0: "infrastructure", 1: "infrastructure"}
    left = going_on(AGENTS, past, 3)
    assert [(agent.agent_id, agent.attempt, agent.attempts_before) for agent in left] == [
        ("b", 2, 2), ("c", 0, 0), ("d", 0, 0),
    ]  # fmt: skip
    assert run.agents_final()["agent_id"].to_pylist() == ["a"]
    assert run.table("agents").num_rows == 3
    withdraw(Tables(tmp_path), [("a", 7), ("nobody", 0)])
    assert run.agents_final()["agent_id"].to_pylist() == ["a"]


def test_a_part_that_loses_a_final_row_keeps_all_else(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    part = max((tmp_path / "agents").glob("*.parquet"))
    before = pa.parquet.read_table(part)
    withdraw(Tables(tmp_path), [("b", 1)])
    after = pa.parquet.read_table(part)
    assert after.schema.equals(before.schema, check_metadata=True)
    assert after.drop_columns(["final"]).equals(before.drop_columns(["final"]))
    assert run.agents_final().num_rows == 1


def test_the_account_leaves_out_what_a_host_tells_itself(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    left = going_on(AGENTS, read_past(run), 3)
    account = account_of(run, AGENTS, left)
    assert (account["sums"]["turns"], account["sums"]["tool_calls"], account["sums"]["input_tokens"]) == (4, 4, 28)
    assert account["endings"] == {"finished": 1, "infrastructure": 1}
    assert account["rewards"] == (1, 0.5)
    of_host = account_of(run, AGENTS[2:], [])
    assert (of_host["sums"]["turns"], of_host["endings"]) == (3, {})


def test_calls_that_were_cut_off_are_those_of_attempts_under_way_whose_turn_is_not_on_record(tmp_path: Path) -> None:
    run = recorded(tmp_path)

    def intent(agent: str, attempt: int, turn: int, calls: int, seconds: float = 0.0) -> dict[str, Any]:
        key = {"agent_id": agent, "attempt": attempt, "turn": turn, "started_seconds": seconds}
        return {**key, "calls": [{}] * calls}

    done = [intent("a", 0, 1, 1), intent("c", 0, 0, 3), intent("c", 0, 2, 1)]
    ended = [intent("a", 0, 2, 1), intent("b", 0, 1, 1), intent("b", 1, 1, 1)]
    cut_off = [intent("c", 0, 3, 2), intent("d", 0, 0, 1)]
    again = [intent("c", 0, 3, 5, seconds=-1.0)]  # its host had died before, and it had begun it there
    assert calls_cut_off(run, read_past(run), done + ended) == 0
    assert calls_cut_off(run, read_past(run), [*cut_off, *done, *ended, *again]) == 3
    assert calls_cut_off(run, read_past(run), []) == 0


def test_each_resume_begins_another_life() -> None:
    assert [life_of({}), life_of({"resumed": []}), life_of({"resumed": [{}, {}]})] == [0, 0, 2]


def test_a_run_of_which_nothing_is_on_record_begins(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    run = Run(tmp_path)
    left = going_on(AGENTS, read_past(run), 3)
    assert left == AGENTS
    assert seconds_of(run) == 0
    assert account_of(run, AGENTS, left)["sums"]["turns"] == 0
