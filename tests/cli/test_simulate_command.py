"""`concur simulate` as a command: what it predicts, prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from concur_batch.cli.app import app
from concur_batch.simulator.config import EngineConfig
from tests.bench.recorded_run import RecordedAgents
from tests.bench.test_fit import COST

POOL_TOKENS = 12_000


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def predicted(*arguments: object) -> dict[str, Any]:
    done = simulate(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.output))


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """Agents whose histories are far more than the pool."""
    path = tmp_path / "w.yaml"
    load = {"agents": 16, "turns": [4, 4], "observation_tokens": [200, 900], "tool_seconds": [1, 9]}
    path.write_text(
        yaml.safe_dump(
            {
                "name": "demo",
                "replay": {"synthetic": load},
                "model": {"name": "Qwen/Qwen3-8B", "tokenizer": "nowhere"},
                "engine": {"kind": "sglang", "url": "http://gpu:30000"},
                "simulate": {"gpu": "l40s", "pool_tokens": 8000},
                "control": {"policy": "agent_cap", "cap": 4},
            }
        )
    )
    return path


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recorded = RecordedAgents(12, 6, EngineConfig(pool_tokens=POOL_TOKENS), COST)
    return recorded.write(tmp_path_factory.mktemp("recorded") / "run-1", POOL_TOKENS)


def test_policies_are_compared_on_the_same_drawn_work(workload: Path) -> None:
    found = predicted(workload)
    assert found["simulated"] is True
    capped, free = found["settings"]
    assert (capped["name"], free["name"], found["reference"]) == ("agent_cap", "none", "none")
    assert len(free["seconds"]) == len(found["variations"]) == 3
    assert capped["device_hit_rate"] > free["device_hit_rate"]
    assert capped["recomputed_tokens"] < free["recomputed_tokens"]
    assert (capped["window_mean"], capped["window_max"], free["window_max"]) == (4, 4, None)
    assert free["speed_up"] == 1.0
    assert free["gpu_hours"] == pytest.approx(free["seconds_median"] / 3600)
    best = min(found["settings"], key=lambda setting: setting["seconds_median"])
    assert found["recommended"] == best["name"]
    assert predicted(workload) == found  # simulated time is the same on any machine


def test_the_table_says_simulated_and_recommends_with_the_numbers(workload: Path) -> None:
    done = simulate(workload, "--policy", "none", "--policy", "concur", "--sweep", "control.u_high=0.4,0.6")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].startswith("SIMULATED: 16 agents, 64 turns; medians of 3 seeds")
    assert lines[1] == "qwen3-8b on 1 x L40S 48 GB, KV pool of 8,000 tokens"
    for name in ("none ", "concur u_high=0.4 ", "concur u_high=0.6 "):
        assert sum(line.startswith(f" {name}") for line in lines) == 1
    (verdict,) = (line for line in lines if line.startswith("Recommended: "))
    assert "How sure: " in verdict
    assert lines[-1].startswith("Left out: ")


def test_hardware_is_swept_like_any_key(workload: Path) -> None:
    found = predicted(workload, "--policy", "none", "--seeds", 1, "--set", "simulate.pool_tokens=null",
                      "--sweep", "simulate.gpu=l40s,h100", "--sweep", "simulate.tp=1,2")  # fmt: skip
    assert [setting["name"] for setting in found["settings"]] == [
        "none gpu=l40s tp=1", "none gpu=l40s tp=2", "none gpu=h100 tp=1", "none gpu=h100 tp=2",
    ]  # fmt: skip
    l40s, _, h100, _ = (setting["seconds_median"] for setting in found["settings"])
    assert h100 < l40s
    assert len({setting["hardware"] for setting in found["settings"]}) == 4


def test_other_work_gets_no_ratio(workload: Path) -> None:
    arguments = ("--policy", "none", "--seeds", 1, "--sweep", "replay.synthetic.agents=8,16")
    few, many = predicted(workload, *arguments)["settings"]
    assert (few["speed_up"], many["speed_up"]) == (1.0, None)
    assert many["other_work"] == ["8 agents only in the second run: drawn-000008/0/0, drawn-000009/0/0, "
                                  "drawn-000010/0/0, 5 more"]  # fmt: skip
    shown = simulate(workload, *arguments).output
    assert "other work" in shown
    assert "No speed-up of none agents=16: its work is not that of none agents=8: 8 agents only" in shown


def test_agents_that_outgrow_the_pool_are_told(workload: Path) -> None:
    shown = simulate(workload, "--policy", "none", "--set", "simulate.pool_tokens=1000", "--seeds", 1).output
    assert "none: 16 agents end early, for their histories outgrow the KV pool" in shown


def test_tasks_have_the_lengths_of_the_load(workload: Path, tmp_path: Path) -> None:
    whole = yaml.safe_load(workload.read_text())
    del whole["replay"]
    whole["tasks"] = {"file": "tasks.jsonl", "prompt": "x", "samples": 2}
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps({"id": f"t{number}"}) + "\n" for number in range(3)))
    workload.write_text(yaml.safe_dump(whole))
    refused = simulate(workload)
    assert refused.exit_code == 2
    assert "simulate.load: the tasks do not tell how long their agents' turns are; add" in refused.stderr
    whole["simulate"]["load"] = {"turns": [3, 3]}
    workload.write_text(yaml.safe_dump(whole))
    assert simulate(workload).output.startswith("SIMULATED: 6 agents, 18 turns")


def test_a_recorded_run_is_simulated_with_costs_fitted_to_it(run_dir: Path) -> None:
    found = predicted("--from", run_dir, "--policy", "none", "--policy", "agent_cap", "--sweep", "control.cap=3,6")
    free, three, six = found["settings"]
    assert [setting["name"] for setting in found["settings"]] == ["none", "agent_cap cap=3", "agent_cap cap=6"]
    assert found["variations"][0] == "as recorded"
    assert len(free["seconds"]) == 7
    recorded = found["recorded"]
    assert (recorded["policy"], recorded["costs"], recorded["agents_left_out"]) == ("none", "fitted", 0)
    # The engine that recorded it is the simulator itself, so its own setting comes out as it went.
    assert recorded["simulated_seconds"] == free["seconds"][0]
    assert recorded["simulated_seconds"] == pytest.approx(recorded["seconds"], rel=0.05)
    assert three["device_hit_rate"] > six["device_hit_rate"] > free["device_hit_rate"]
    assert three["speed_up"] is not None


def test_a_recorded_run_on_named_gpus_takes_their_costs(run_dir: Path) -> None:
    found = predicted("--from", run_dir, "--policy", "none", "--set", "simulate={gpu: h100, model: qwen3-8b}")
    assert found["recorded"]["costs"] == "named"
    assert found["recorded"]["simulated_seconds"] is None  # on a pool of another size it is another run
    assert found["settings"][0]["hardware"].startswith("qwen3-8b on 1 x H100 80 GB SXM, KV pool of ")
    shown = simulate("--from", run_dir, "--policy", "none").output
    assert "run-1 itself took " in shown
    assert "No GPU is named, so costs are fitted to 72 turns of it: mean error" in shown


def test_a_host_tier_is_simulated_and_its_link_varied(run_dir: Path) -> None:
    section = "simulate={gpu: l40s, model: qwen3-8b, pool_tokens: 6000, hicache: {ratio: 8}}"
    found = predicted("--from", run_dir, "--policy", "none", "--set", section)
    (setting,) = found["settings"]
    assert "HiCache of 48,000 tokens (write_through)" in setting["hardware"]
    assert setting["host_hit_rate"] > 0.1
    assert [name for name in found["variations"] if "link" in name] == ["host link -20%", "host link +20%"]
    without = predicted("--from", run_dir, "--policy", "none", "--set", section, "--set", "simulate.hicache=null")
    assert without["settings"][0]["host_hit_rate"] == 0
    assert without["settings"][0]["recomputed_tokens"] > 2 * setting["recomputed_tokens"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--policy", "steadily"], "concur: --policy steadily: no such policy; did you mean `steady`?"),
        (["--policy", "concur", "--sweep", "control.cap=1"], "--sweep control.cap: no policy of these has the key; "
                                                             "give one that has it as --policy"),
        (["--seeds", "0"], "concur: --seeds 0: there is nothing to simulate; give at least 1"),
        (["--set", "simulate.gpu=tpu"], ": simulate: there is no GPU 'tpu' in the catalogue; give one of h100, h200, "
                                        "a100, l40s"),
        (["--sweep", "control.u_high=0.4,2"], "--set control.u_high=2: control.u_high: 2 is above 1; give a share from "
                                              "0 to 1"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(workload: Path, arguments: list[str], line: str) -> None:
    done = simulate(workload, *([] if "--policy" in arguments else ["--policy", "concur"]), *arguments)
    assert done.exit_code == 2
    assert done.stderr.rstrip("\n").endswith(line)
    assert done.stderr.count("\n") == 1


def test_what_is_no_run_and_what_is_missing_is_refused(run_dir: Path, tmp_path: Path) -> None:
    assert simulate().stderr == "concur: no workload: give a WORKLOAD.YAML, or --from RUN\n"
    gone = simulate("--from", tmp_path)
    assert gone.exit_code == 2
    assert gone.stderr.startswith("--from: not a run directory")
    assert simulate("--from", run_dir, "--seeds", 2).stderr == (
        "concur: --seeds: what is recorded has one load; leave it out\n"
    )
    silent = RecordedAgents(2, 3, EngineConfig(pool_tokens=POOL_TOKENS), COST).write(tmp_path / "short", POOL_TOKENS)
    done = simulate("--from", silent)
    assert done.exit_code == 2
    assert done.stderr == "concur: its turns do not tell the engine's seconds\n"
