"""Loads for benchmarks and load tests: a zero-cost engine in a process of its own, and workloads against it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import yaml

DEMO_MODEL = Path(__file__).parents[2] / "workloads" / "demo_model"


@contextmanager
def engine_server(directory: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Serve the simulated engine at no cost in simulated time, from another process; gives its URL.

    `config` adds to the server's configuration, for instance `synthetic` or `scripts`.
    """
    path = directory / "server.json"
    zero = {
        "prefill_seconds_per_token": 0.0,
        "prefill_seconds_per_token_pair": 0.0,
        "decode_step_seconds": 0.0,
        "decode_seconds_per_request": 0.0,
        "decode_seconds_per_kv_token": 0.0,
    }
    engine = {"pool_tokens": 64_000_000, "context_tokens": 131_072, "max_running_requests": 100_000}
    path.write_text(json.dumps({"engine": engine, "cost": zero, "tokenizer": str(DEMO_MODEL), **config}))
    with _serving("concur_batch.simulator.server", "--config", str(path)) as url:
        yield url


@contextmanager
def mock_server(turns: int, tool: str, arguments: Mapping[str, Any]) -> Iterator[str]:
    """An engine that answers at once with ready replies, so many turns an agent; gives its URL."""
    call = (tool, json.dumps(arguments))
    with _serving("concur_batch.bench.mock_server", str(DEMO_MODEL), str(turns), *call) as url:
        yield url


@contextmanager
def _serving(module: str, *arguments: str) -> Iterator[str]:
    """A server module in a process of its own, which prints its address last on its first line."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def write_workload(directory: Path, agents: int, url: str, overrides: Mapping[str, Any]) -> Path:
    """A workload of so many one-line tasks against the engine at `url`; `overrides` replaces top-level blocks."""
    tasks = directory / "tasks.jsonl"
    tasks.write_bytes(b"".join(orjson.dumps({"id": f"load-{number}"}) + b"\n" for number in range(agents)))
    workload: dict[str, Any] = {
        "name": directory.name,
        "tasks": {"file": str(tasks), "prompt": "Task {{ id }}\n\nWork until you are done.", "seed": 1},
        "model": {"name": "demo", "tokenizer": str(DEMO_MODEL), "sampling": {"max_tokens": 512}},
        "engine": {"kind": "sglang", "url": url},
        "control": {"policy": "none"},
        "output": str(directory / "runs"),
        **overrides,
    }
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return path
