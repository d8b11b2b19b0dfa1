"""A running Ray cluster of two nodes, whose state directories are separate: only the run directory is shared."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from concur_batch.trace.reading import Run
from tests.run.command import Running, concur, finished_run, rows_so_far, synthetic_workload, wait_for
from tests.run.nodes import RAY, kill_node, ray_nodes
from tests.servers import free_port


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with ray_nodes(2) as address:
        yield address


def test_a_run_joins_the_cluster_spreads_over_its_nodes_and_leaves_it_running(cluster: str, tmp_path: Path) -> None:
    for _ in range(2):  # the second run finds the cluster as the first one left it
        workload = synthetic_workload(tmp_path, 12)
        summary, run = finished_run(workload, "--ray-address", cluster)
        assert summary["finished"] == 12
        assert len(run.manifest["nodes"]) == 2
        final = run.agents_final().to_pylist()
        assert {row["host"] for row in final} == {"host0", "host1"}
        assert len({part.name.split("-")[0] for part in run.path.glob("turns/*.parquet")}) == 2  # a recorder a node
        time.sleep(1)
    env = {**os.environ, "RAY_AUTH_MODE": "token"}
    status = subprocess.run([RAY, "status", "--address", cluster], capture_output=True, text=True, env=env)
    assert status.stdout.count("node_") == 2, status.stdout + status.stderr


def test_a_run_loses_its_driver_and_then_a_node_and_nothing_else(cluster: str, tmp_path: Path) -> None:
    tools = {"kind": "synthetic", "wait_seconds": [0.5, 1.0]}
    running = Running(synthetic_workload(tmp_path, 12, tools=tools), "--ray-address", cluster)
    wait_for(lambda: rows_so_far(tmp_path / "runs", "turns") >= 12, "turns")
    running.process.kill()
    running.process.wait()
    (run_dir,) = (tmp_path / "runs").iterdir()
    running = Running(run_dir, "--ray-address", cluster, verb="resume")
    before = rows_so_far(tmp_path / "runs", "turns")
    wait_for(lambda: rows_so_far(tmp_path / "runs", "turns") > before + 6, "turns")
    kill_node(1)
    summary = running.end(0)
    assert "host1 died" in running.log
    run = Run(run_dir)
    assert summary["finished"] == 12
    assert {(row["attempt"], row["turns"]) for row in run.agents_final().to_pylist()} == {(0, 6)}
    assert run.table("turns").num_rows == summary["turns"] == 72
    assert len({(row["agent_id"], row["turn"]) for row in run.table("turns", ["agent_id", "turn"]).to_pylist()}) == 72


def test_an_address_where_no_cluster_is_is_one_line(tmp_path: Path) -> None:
    done = concur("run", synthetic_workload(tmp_path, 1), "--ray-address", f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "ray status" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
