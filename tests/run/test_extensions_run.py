"""The law with our hygiene, priorities, groups and deadlines in a whole run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tests.run.command import finished_run, synthetic_workload

# In the file's order; one place, so that they are admitted one after the other.
TASKS = [
    {"id": "first", "rank": 9, "team": "x"},  # nobody else has asked yet
    {"id": "low", "rank": -1, "team": "x"},
    {"id": "plain-x", "rank": 0, "team": "x"},
    {"id": "late", "rank": 0, "team": "y", "due": 900},
    {"id": "soon", "rank": 0, "team": "y", "due": "800"},
    {"id": "high", "rank": 5, "team": "x"},
    {"id": "never", "rank": -9, "team": "x", "due": 0.5},
]


def test_steady_admits_by_priority_and_deadline_and_ends_what_is_not_done_by_its_own(tmp_path: Path) -> None:
    workload = synthetic_workload(
        tmp_path,
        0,
        engine={"kind": "simulated", "synthetic": {"turns": [2, 2]}, "time_scale": 10},
        tools={"kind": "synthetic", "wait_seconds": [0.1, 0.1]},
        tasks={
            "file": "tasks.jsonl",
            "prompt": "Task {{ id }}\n\nWork.",
            "priority": "rank",
            "group": "team",
            "deadline": "due",
        },
        control={"policy": "steady", "period_seconds": 0.2, "initial_window": 1, "max_window": 1},
    )
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"due": None, **task}) + "\n" for task in TASKS))
    summary, run = finished_run(workload)
    assert (summary["policy"], summary["finished"], summary["limit"], summary["failed"]) == ("steady", 6, 1, 0)
    final = run.agents_final().to_pylist()
    admitted = sorted((row for row in final if row["turns"]), key=lambda row: float(row["admitted_seconds"]))
    order = [row["task_id"] for row in admitted]
    assert order[0] == "first"
    assert order[1] == "high"
    assert order[-1] == "low"
    assert order.index("soon") < order.index("late")
    for before, after in pairwise(admitted):  # one place
        assert before["ended_seconds"] <= after["admitted_seconds"]
    [never] = [row for row in final if row["task_id"] == "never"]
    assert (never["status"], never["end_reason"], never["turns"]) == ("limit", "deadline", 0)
    rows = run.table("control").to_pylist()
    assert {(row["policy"], row["window_after"]) for row in rows} == {("steady", 1)}
    assert {row["branch"] for row in rows} <= {"hold", "grow", "cut"}
    control = run.manifest["workload"]["control"]
    assert (control["smoothing"], control["slow_start"], control["remember_collapse"]) == ("mean", True, True)
