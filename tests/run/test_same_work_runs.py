"""The same-work check on finished runs: a policy changes when agents run and not what they do, a limit does."""

from __future__ import annotations

from pathlib import Path

from concur_batch.bench.same_work import same_work
from tests.run.command import finished_run, synthetic_workload


def test_a_policy_keeps_the_work_and_a_limit_does_not(tmp_path: Path) -> None:
    workload = synthetic_workload(tmp_path, 12)
    capped = ("--set", "control.policy=agent_cap", "--set", "control.cap=3")
    free_run, capped_run, limited_run = (
        finished_run(workload, *settings)[1].table("agents").to_pylist()
        for settings in ((), capped, (*capped, "--set", "agent.limits.turns=3"))
    )
    same = same_work(free_run, capped_run)
    assert same.lines() == []
    assert same.same
    assert same.first_totals["agents"] == 12
    assert same.first_totals["turns"] == 72  # five with a call, one to submit
    assert all(same.first_totals.values())

    limited = same_work(free_run, limited_run)
    assert not limited.same
    assert {(change.field, change.first, change.second) for change in limited.changes if change.field == "turns"} == {
        ("turns", 6, 3)
    }
    assert [change.second for change in limited.changes if change.field == "status"] == ["limit"] * 12
    assert limited.second_totals["turns"] == 36
