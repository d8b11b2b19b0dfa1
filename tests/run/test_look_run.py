"""A real run read by `concur inspect`, `ls` and `stats`: their figures are those of its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from concur_batch.cli.app import app
from tests.run.command import ROOT, finished_run


def told(*arguments: object) -> str:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_run_is_listed_read_searched_and_counted(tmp_path: Path) -> None:
    summary, run = finished_run(
        ROOT / "workloads" / "quickstart.yaml", "--set", "tasks.limit=4", "--set", f"output={tmp_path}"
    )
    (row,) = json.loads(told("ls", tmp_path, "--json"))["runs"]
    assert (row["status"], row["ended"], row["agents"], row["engine"]) == ("finished", 8, 8, "simulated")
    assert row["reward_mean"] == summary["reward_mean"]

    final = run.agents_final().to_pylist()
    listed = json.loads(told("inspect", run.path, "--json"))["listed"]
    assert {agent["agent_id"] for agent in listed} == {agent["agent_id"] for agent in final}
    for agent in final[:3]:
        picture: dict[str, Any] = json.loads(told("inspect", run.path, agent["agent_id"], "--json"))
        sums = picture["sums"]
        assert {name: sums[name] for name in ("turns", "tool_calls", "input_tokens", "output_tokens", "pauses")} == {
            name: agent[name] for name in ("turns", "tool_calls", "input_tokens", "output_tokens", "pauses")
        }
        assert agent["task_id"] in picture["turns"][0]["told"]
        lines = told("inspect", run.path, agent["agent_id"], "--full").splitlines()
        assert sum(line.startswith("turn ") for line in lines) == agent["turns"]
        output = picture["turns"][0]["calls"][0]["output"].splitlines()[0]
        assert f"  │ {output}" in lines
        hits = json.loads(told("inspect", run.path, "--search", output, "--json"))["found"]
        assert (agent["agent_id"], 0) in {(hit["agent_id"], hit["turn"]) for hit in hits}

    (counted,) = json.loads(told("stats", run.path, "--json"))["runs"]
    assert (counted["turns"], counted["tool_calls"]) == (summary["turns"], summary["tool_calls"])
    assert counted["cached_share"] == summary["hit_rate"]
    assert counted["recomputed_share"] == summary["recomputed_share"]
