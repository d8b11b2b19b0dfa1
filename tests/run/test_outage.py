"""An engine that is killed and comes back: agents wait for it, and none is lost or counted as failed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from concur_batch.trace.reading import Run
from tests.run.command import ROOT, Running, rows_so_far, synthetic_workload, wait_for


class Engine:
    """The simulated engine's server on a port of its own, to be killed and started again."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.config = directory / "server.json"
        config = {
            "engine": {"pool_tokens": 1_000_000, "context_tokens": 32_768},
            "synthetic": {"turns": [8, 8]},
            "time_scale": 10,
            "tokenizer": str(ROOT / "workloads/demo_model"),
            "port": self.port,
        }
        self.config.write_text(json.dumps(config))
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "concur_batch.simulator.server", "--config", str(self.config)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.kill()


def begun(engine: Engine, directory: Path) -> Running:
    """A run of 12 agents that has recorded some turns."""
    section = {"kind": "sglang", "url": f"http://127.0.0.1:{engine.port}"}
    tools = {"kind": "synthetic", "wait_seconds": [0.2, 0.5]}
    control = {"policy": "none", "period_seconds": 0.5}
    running = Running(synthetic_workload(directory, 12, engine=section, tools=tools, control=control))
    wait_for(lambda: rows_so_far(directory / "runs", "turns") >= 12, "turns")
    return running


def test_a_killed_engine_that_returns_costs_no_agent(engine: Engine, tmp_path: Path) -> None:
    running = begun(engine, tmp_path)
    engine.kill()
    engine.start()
    summary = running.end(0)
    final = Run(summary["run_dir"]).agents_final().to_pylist()
    assert len(final) == summary["finished"] == 12
    assert {row["attempt"] for row in final} == {0}


def test_an_engine_that_is_gone_is_told_and_does_not_keep_a_run_from_stopping(engine: Engine, tmp_path: Path) -> None:
    running = begun(engine, tmp_path)
    engine.kill()
    time.sleep(4)
    running.process.send_signal(signal.SIGINT)
    output, log = running.process.communicate(timeout=90)
    assert running.process.returncode == 130, output + log
    assert "the engine does not answer" in log
    assert "Traceback" not in log
    summary = json.loads(output.splitlines()[-1])
    assert summary["status"] == "interrupted"
    assert summary["turns"] >= 12  # what was done is counted and saved, though no agent has ended
    assert summary["unfinished"] == 12
