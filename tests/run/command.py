"""`concur` as a person runs it: a process of its own, from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from concur_batch.trace.reading import Run

ROOT = Path(__file__).parents[2]
CONCUR = str(Path(sys.executable).with_name("concur"))


def concur(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run to the end."""
    command = [CONCUR, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(env or {})}, timeout=280
    )


def finished_run(*arguments: object, env: Mapping[str, str] | None = None) -> tuple[dict[str, Any], Run]:
    """Run a workload that must succeed; its summary and its tables."""
    done = concur("run", *arguments, "--json", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    return summary, Run(summary["run_dir"])


# The command with constants of its process set, by their full names: no test waits for half a minute.
_WITH_CONSTANTS = """
import importlib, json, sys
for name, value in json.loads(sys.argv.pop(1)).items():
    module, _, constant = name.rpartition(".")
    assert hasattr(importlib.import_module(module), constant), name
    setattr(sys.modules[module], constant, value)
from concur_batch.cli.main import main
main()
"""


class Running:
    """A run that a test disturbs. `constants` are set in the driver's process; what the command says on the way is in
    the file `said`, where one is given."""

    def __init__(
        self,
        *arguments: object,
        verb: str = "run",
        env: Mapping[str, str] | None = None,
        constants: Mapping[str, float] | None = None,
        said: Path | None = None,
    ) -> None:
        self.log = ""  # once it has ended
        self._said = said
        command = [sys.executable, "-c", _WITH_CONSTANTS, json.dumps(constants)] if constants else [CONCUR]
        with said.open("w") if said is not None else nullcontext(subprocess.PIPE) as stderr:
            self.process = subprocess.Popen(
                [*command, verb, *map(str, arguments), "--json"],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, **(env or {})},
            )

    def until_said(self, text: str) -> None:
        """Wait until the command has said that."""
        assert self._said is not None
        wait_for(lambda: text in self._said.read_text(), f"{text!r}")  # type: ignore[union-attr]

    def actors(self, name: str) -> list[psutil.Process]:
        """The processes of the Ray actors of that class."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{name}"):
                    found.append(process)
        return found

    def actor(self, name: str) -> psutil.Process:
        """The process of the first of them, once it is there."""
        found: list[psutil.Process] = wait_for(lambda: self.actors(name), f"an actor {name}")
        return found[0]

    def end(self, code: int) -> dict[str, Any]:
        """Wait for the end; the summary."""
        output, log = self.process.communicate(timeout=240)
        self.log = log if self._said is None else self._said.read_text()
        assert self.process.returncode == code, output + self.log
        return dict(json.loads(output.splitlines()[-1]))


def wait_for(find: Callable[[], Any], what: str, seconds: float = 90) -> Any:
    """Poll until `find` gives something."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s for {what}")


def rows_so_far(output: Path, table: str) -> int:
    """Rows of a table of the only run below `output` that can be read by now."""
    for manifest in output.glob("*/manifest.json"):
        return int(Run(manifest.parent).table(table, columns=["agent_id"]).num_rows)
    return 0


def synthetic_workload(directory: Path, agents: int, **blocks: Any) -> Path:
    """A workload on the simulated engine with synthetic tools; `blocks` replace its top-level blocks."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tasks.jsonl").write_text("".join(json.dumps({"id": f"t{n:04d}"}) + "\n" for n in range(agents)))
    workload = {
        "name": "synthetic",
        "tasks": {"file": "tasks.jsonl", "prompt": "Task {{ id }}\n\nWork.", "seed": 3},
        "model": {"name": "demo", "tokenizer": str(ROOT / "workloads/demo_model")},
        "engine": {"kind": "simulated", "synthetic": {"turns": [5, 5]}, "time_scale": 10},
        "tools": {"kind": "synthetic", "wait_seconds": [0.05, 0.2], "observation_words": [20, 60]},
        "control": {"policy": "none"},
        "output": str(directory / "runs"),
        **blocks,
    }
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return path
