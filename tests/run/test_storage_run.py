"""A run whose tables are in S3, on two nodes that share no disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from concur_batch.trace.reading import Run
from tests.run.command import Running, concur, rows_so_far, synthetic_workload, wait_for
from tests.run.nodes import ray_nodes
from tests.s3_server import Server


def test_nodes_that_share_no_disk_share_the_tables(s3: Server, tmp_path: Path) -> None:
    output = tmp_path / "runs"
    output.mkdir()
    mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "own", str(output)]
    tried = subprocess.run(mount, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"a mount is not permitted here: {tried.stderr.strip()}")
    with ray_nodes(2, private=output) as address:
        tools = {"kind": "synthetic", "wait_seconds": [0.3, 0.6]}
        running = Running(
            synthetic_workload(tmp_path, 12, storage=s3.uri("bucket/runs"), tools=tools), "--ray-address", address
        )
        # What the driver's node knows by then; the other one has as much in its own journal.
        wait_for(lambda: rows_so_far(output, "turns") >= 12, "turns")
        running.process.kill()
        running.process.wait()
        (run_dir,) = output.iterdir()
        summary = Running(run_dir, "--ray-address", address, verb="resume").end(0)
    run = Run(run_dir)
    assert summary["finished"] == 12 and run.manifest["status"] == "finished"
    assert {row["host"] for row in run.agents_final().to_pylist()} == {"host0", "host1"}
    assert run.table("turns").num_rows == summary["turns"] == 72
    assert {(row["attempt"], row["turns"]) for row in run.agents_final().to_pylist()} == {(0, 6)}
    objects = s3.objects(f"bucket/runs/{run.path.name}")
    recorders = {name.partition("/")[2].rpartition("-")[0] for name in objects}
    assert recorders == set(run.manifest["journals"]) and len(recorders) == 2
    assert {name.partition("/")[0] for name in objects} == {"agents", "tools", "turns", "control"}
    assert not {"agents", "turns", "journal"} & {path.name for path in run.path.iterdir()}


def test_what_is_no_place_for_tables_is_told_before_the_run(s3: Server, tmp_path: Path) -> None:
    workload = synthetic_workload(tmp_path, 1, storage=s3.uri("nosuchbucket/runs"))
    done = concur("run", workload)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "storage" in done.stderr and "NO_SUCH_BUCKET" in done.stderr
    assert [*(tmp_path / "runs").iterdir()] == []
