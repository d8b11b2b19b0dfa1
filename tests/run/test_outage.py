"""An engine that is killed: agents wait for it, and none is lost or counted as failed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from concur_batch.trace.reading import Run
from tests.run.command import Running, rows_so_far, synthetic_workload, wait_for
from tests.run.engines import Engine, rows_of, states_of


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path, turns=8)
    yield engine
    engine.kill()


def begun(engine: Engine, directory: Path) -> Running:
    """A run of 12 agents that has recorded some turns."""
    section = {"kind": "sglang", "url": engine.url}
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


def test_while_an_engine_is_gone_for_good_everybody_waits_until_the_run_is_stopped(
    engine: Engine, tmp_path: Path
) -> None:
    running = begun(engine, tmp_path)
    engine.kill()
    output = tmp_path / "runs"
    wait_for(lambda: states_of(output) == {"0": "closed"}, "a closed pool")
    turns = rows_so_far(output, "turns")
    wait_for(lambda: rows_of(output, "control")[-1]["paused"] == 12, "all to wait")
    assert (rows_of(output, "agents"), running.process.poll()) == ([], None)  # nothing is drained as failures
    running.process.send_signal(signal.SIGINT)
    said, log = running.process.communicate(timeout=90)
    assert running.process.returncode == 130, said + log
    assert "the engine does not answer: its agents wait" in log
    assert "stopping at once" not in log  # whoever waits needs no time to end
    assert "Traceback" not in log
    summary = json.loads(said.splitlines()[-1])
    assert (summary["status"], summary["failed"], summary["unfinished"]) == ("interrupted", 0, 12)
    assert summary["turns"] >= turns >= 12  # what was done is counted and saved, though no agent has ended
