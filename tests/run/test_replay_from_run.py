"""Trajectories of other programs, replayed by `concur run`: its tables have their turns, tokens, calls and waits."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner, Result

from concur_batch.cli.app import app
from concur_batch.foreign.file import read_agents
from tests.run.command import ROOT, finished_run

FILES = sorted((ROOT / "tests" / "fixtures" / "foreign").iterdir())
DEMO = ROOT / "workloads" / "demo_model"


def concur(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_foreign_agents_are_replayed_as_they_were(tmp_path: Path) -> None:
    replay = tmp_path / "replay.parquet"
    made = concur("replay-from", *FILES, "--model", DEMO, "-o", replay, "--tool-seconds", "0.01:0.05", "--json")
    assert made.exit_code == 0, made.output
    told = json.loads(made.stdout)
    workload = {
        "name": "foreign",
        "replay": {"file": str(replay)},
        "model": {"name": "demo", "tokenizer": str(DEMO)},
        "engine": {"kind": "simulated", "synthetic": {}, "time_scale": 10},
        "control": {"policy": "agent_cap", "cap": 4},
        "output": str(tmp_path / "runs"),
    }
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(workload))
    summary, run = finished_run(tmp_path / "w.yaml")
    assert (summary["agents"], summary["finished"], summary["limit"]) == (8, 7, 1)
    assert (summary["turns"], summary["output_tokens"]) == (told["turns"], told["output_tokens"])
    assert summary["tool_calls"] == sum(told["calls"].values())

    rows = run.table("turns").sort_by([("agent_id", "ascending"), ("turn", "ascending")]).to_pylist()
    tools = run.table("tools").sort_by([(name, "ascending") for name in ("agent_id", "turn", "call")]).to_pylist()
    agents = {agent.agent_id: agent for agent in read_agents(replay)}
    for name, agent in agents.items():
        assert agent.trajectory is not None
        steps = agent.trajectory.steps
        own = [row for row in rows if row["agent_id"] == name]
        assert [row["input_delta_ids"] for row in own] == [step.new_ids.tolist() for step in steps]
        assert [row["output_tokens"] for row in own] == [step.output_tokens for step in steps]
        calls = [(exchange.name, exchange.result.output, exchange.result.seconds)
                 for step in steps for exchange in step.exchanges]  # fmt: skip
        assert [(row["name"], row["output"], row["seconds"]) for row in tools if row["agent_id"] == name] == calls
        assert all(
            sum(exchange.result.seconds for exchange in step.exchanges) <= row["tool_seconds"] + 0.05
            for row, step in zip(own, steps, strict=True)
        )

    # Where the file stands decides nothing.
    moved = replay.rename(tmp_path / "moved.parquet")
    resumed = concur("resume", run.path, "--set", f"replay.file={moved}")
    assert resumed.exit_code == 0, resumed.output
    assert "all 8 agents have ended" in resumed.output

    # The run is one like any other, which can be replayed itself.
    again = concur("run", "--replay", run.path, "--dry-run", "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["replayed_turns"] == told["turns"]
