"""Simulated engine servers as processes of their own, to be killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from concur_batch.trace.reading import Run
from tests.run.command import ROOT
from tests.servers import free_port


class Engine:
    """A server on a port that stays its own; `settings` are of the engine, over a pool that nobody fills."""

    def __init__(self, directory: Path, turns: int, **settings: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._file = directory / f"server{self.port}.json"
        self._turns = turns
        self.start(**settings)

    def start(self, **settings: Any) -> None:
        config = {
            "engine": {"pool_tokens": 1_000_000, "context_tokens": 32_768, **settings},
            "synthetic": {"turns": [self._turns, self._turns]},
            "time_scale": 10,
            "tokenizer": str(ROOT / "workloads/demo_model"),
            "port": self.port,
        }
        self._file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "concur_batch.simulator.server", "--config", str(self._file)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def rows_of(output: Path, table: str) -> list[dict[str, Any]]:
    """The rows so far of the only run below `output`."""
    return [row for found in output.glob("*/manifest.json") for row in Run(found.parent).table(table).to_pylist()]


def states_of(output: Path) -> dict[str, str]:
    """The pools' states in their newest control rows."""
    rows = sorted(rows_of(output, "control"), key=lambda row: float(row["seconds"]))
    return {row["pool"]: row["pool_state"] for row in rows}
