"""A running Ray cluster of two nodes, whose state directories are separate: only the run directory is shared."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.run.command import concur, finished_run, synthetic_workload

RAY = str(Path(sys.executable).with_name("ray"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_node(temp_dir: Path, *arguments: str) -> None:
    """One `ray start`, in the background as an operator would."""
    command = [RAY, "start", *arguments, "--num-cpus=2", f"--temp-dir={temp_dir}", "--object-store-memory=100000000"]
    # Ray takes a cluster on the loopback address for one on a Mac, and wants to be told that it is meant.
    env = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "RAY_AUTH_MODE": "token"}
    done = subprocess.run([*command, "--disable-usage-stats"], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    # Unix sockets have short paths, pytest's directories long ones.
    base = Path(f"/tmp/cr{os.getpid()}")
    port = free_port()
    address = f"127.0.0.1:{port}"
    try:
        start_node(base / "a", "--head", f"--port={port}", "--include-dashboard=false", "--node-ip-address=127.0.0.1")
        start_node(base / "b", f"--address={address}", "--node-ip-address=127.0.0.1")
        yield address
    finally:
        for process in psutil.process_iter(["cmdline"]):
            if str(base) in " ".join(process.info["cmdline"] or []):
                process.send_signal(signal.SIGKILL)
        subprocess.run(["rm", "-rf", str(base)], check=False)


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
