"""A running Ray cluster of two nodes, whose state directories are separate: only the run directory is shared."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run.command import concur, finished_run, synthetic_workload
from tests.run.nodes import RAY, ray_nodes
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


def test_an_address_where_no_cluster_is_is_one_line(tmp_path: Path) -> None:
    done = concur("run", synthetic_workload(tmp_path, 1), "--ray-address", f"127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "ray status" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
