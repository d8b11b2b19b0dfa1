from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from concur_batch.export import assembly
from concur_batch.export.assembly import assembled, bucket_of
from concur_batch.export.trajectory import Trajectory
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run
from tests.export.exported_runs import agent, turns_of, write_run

CHOSEN = ("run", "agent_id", "attempt", "turns", "context_tokens")


def chosen(*rows: dict[str, Any], run: int = 0) -> pa.Table:
    table = pa.Table.from_pylist([{"run": run, **row} for row in rows])
    return table.select(list(CHOSEN))


def all_of(runs: list[Run], agents: pa.Table, scratch: Path) -> list[Trajectory]:
    scratch.mkdir(exist_ok=True)
    found = list(assembled(runs, agents, scratch, lambda table, rows: None))
    assert list(scratch.iterdir()) == []
    return found


def check(found: Trajectory, row: dict[str, Any]) -> None:
    """It is the agent's, with all of its turns and calls."""
    assert {name: found.agent[name] for name in row} == row
    expected = turns_of(row)
    assert len(found.turns) == len(expected)
    for turn, (columns, calls) in zip(found.turns, expected, strict=True):
        ids = {name: columns.pop(name) for name in ("input_delta_ids", "output_ids", "output_logprobs")}
        assert turn.input_delta_ids.dtype == turn.output_ids.dtype == np.int32
        assert turn.input_delta_ids.tolist() == ids["input_delta_ids"] and turn.output_ids.tolist() == ids["output_ids"]
        logprobs = turn.output_logprobs
        assert (None if logprobs is None else list(logprobs)) == ids["output_logprobs"]
        assert {name: turn.row[name] for name in columns} == columns
        assert not ids.keys() & turn.row.keys()
        assert [(call.name, call.arguments["step"]) for call, _ in turn.calls] == [("work", c["call"]) for c in calls]
        assert [result.output for _, result in turn.calls] == [call["output"] for call in calls]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.randoms(), st.integers(1, 400), st.integers(2, 9))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_trajectories_come_whole_and_in_order_from_any_parts(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], random: Any, bucket_bytes: int, rows_a_part: int
) -> None:
    agents = [agent(f"t{number}", turns=turns) for number, turns in enumerate(lengths)]
    directory = tmp_path_factory.mktemp("run")
    run = write_run(directory / "run", agents, rows_a_part=rows_a_part)
    wanted = random.sample(agents, random.randint(1, len(agents)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "_BUCKET_BYTES", bucket_bytes * 10)
        found = all_of([run], chosen(*wanted), directory / "scratch")
    assert len(found) == len(wanted)
    for each, row in zip(found, wanted, strict=True):
        assert each.run == "run"
        check(each, row)


def test_only_the_final_attempt_is_taken(tmp_path: Path) -> None:
    final = agent("a", attempt=2, turns=3)
    run = write_run(tmp_path / "run", [agent("a", turns=4, final=False, status="failed"), final, agent("b")])
    (found,) = all_of([run], chosen(final), tmp_path / "scratch")
    check(found, final)


def test_agents_of_several_runs_come_in_the_order_asked_for(tmp_path: Path) -> None:
    rows = [agent("a", turns=2), agent("a", turns=3)]  # of the same name
    runs = [write_run(tmp_path / f"run{number}", [row]) for number, row in enumerate(rows)]
    agents = pa.concat_tables([chosen(rows[1], run=1), chosen(rows[0], run=0)])
    found = all_of(runs, agents, tmp_path / "scratch")
    assert [(each.run, len(each.turns)) for each in found] == [("run1", 3), ("run0", 2)]


def test_turns_that_are_on_no_record_are_missing_and_nothing_else(tmp_path: Path) -> None:
    row = agent("a", turns=6)
    run = write_run(tmp_path / "run", [row], rows_a_part=2)
    min((tmp_path / "run" / "turns").iterdir()).unlink()
    (found,) = all_of([run], chosen(row), tmp_path / "scratch")
    assert [turn.row["turn"] for turn in found.turns] == [2, 3, 4, 5]


def test_a_result_that_is_taken_back_meanwhile_is_told(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [agent("a", final=False)])
    with pytest.raises(TraceError, match="withdrawn"):
        all_of([run], chosen(agent("a")), tmp_path / "scratch")


def test_no_agents_are_no_trajectories(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [agent("a")])
    assert all_of([run], chosen(agent("a")).slice(1), tmp_path / "scratch") == []


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 10**7)), min_size=1, max_size=300))
def test_buckets_follow_each_other_and_are_bounded(agents: list[tuple[int, int]]) -> None:
    turns, tokens = (np.array(column, np.int64) for column in zip(*agents, strict=True))
    buckets = bucket_of(turns, tokens)
    weights = 800 * turns + 12 * tokens
    most = max(32 << 20, -(-int(weights.sum()) // 256))
    assert len(buckets) == len(agents) and buckets[0] >= 0 and (np.diff(buckets) >= 0).all()
    assert len(set(buckets.tolist())) <= 256
    for bucket in set(buckets.tolist()):
        inside = weights[buckets == bucket]
        assert inside.sum() - inside[0] < most  # the first may be larger than a bucket, or reach into it
