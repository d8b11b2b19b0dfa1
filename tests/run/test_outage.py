"""An engine that is killed and comes back: agents wait for it, and none is lost or counted as failed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from concur_batch.trace.reading import Run
from tests.run.command import ROOT, Running, rows_so_far, synthetic_workload, wait_for


def test_a_killed_engine_that_returns_costs_no_agent(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = {
        "engine": {"pool_tokens": 1_000_000, "context_tokens": 32_768},
        "synthetic": {"turns": [8, 8]},
        "time_scale": 10,
        "tokenizer": str(ROOT / "workloads/demo_model"),
        "port": port,
    }
    path = tmp_path / "server.json"
    path.write_text(json.dumps(config))

    def serve() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "concur_batch.simulator.server", "--config", str(path)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        server.stdout.readline()
        return server

    server = serve()
    try:
        engine = {"kind": "sglang", "url": f"http://127.0.0.1:{port}"}
        tools = {"kind": "synthetic", "wait_seconds": [0.2, 0.5]}
        running = Running(synthetic_workload(tmp_path, 12, engine=engine, tools=tools))
        wait_for(lambda: rows_so_far(tmp_path / "runs", "turns") >= 12, "turns")
        server.kill()
        server.wait()
        server = serve()
        summary = running.end(0)
    finally:
        server.kill()
        server.wait()
    final = Run(summary["run_dir"]).agents_final().to_pylist()
    assert len(final) == summary["finished"] == 12
    assert {row["attempt"] for row in final} == {0}
