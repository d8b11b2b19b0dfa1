"""CPU time and memory of a process and all its descendants, sampled while it runs."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil


@dataclass(slots=True)
class ProcessTree:
    """Samples a running process. Descendants that have ended count through the children times of who reaped them.

    A sandbox's inner processes may be reaped by process 1, which no such sum sees: with `whole_machine` the CPU time is
    that of everything on this machine, which should be quiet then.
    """

    process: subprocess.Popen[bytes]
    whole_machine: bool = False
    period_seconds: float = 0.2
    samples: list[tuple[float, float]] = field(default_factory=list)  # (wall clock, CPU seconds so far)
    peak_bytes: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> ProcessTree:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()

    def cpu_seconds_since(self, moment: float) -> float:
        """CPU seconds spent since a wall clock moment, to the nearest sample."""
        return self.samples[-1][1] - min(self.samples, key=lambda sample: abs(sample[0] - moment))[1]

    def _watch(self) -> None:
        root = psutil.Process(self.process.pid)
        while not self._ended.is_set():
            try:
                tree = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            total_bytes, cpu_seconds = 0, 0.0
            for process in tree:
                try:
                    times = process.cpu_times()
                    total_bytes += process.memory_info().rss - process.memory_info().shared
                except psutil.NoSuchProcess:
                    continue
                cpu_seconds += times.user + times.system + times.children_user + times.children_system
            # What ends last takes its own time with it: the sum of a tree that is going down must not fall.
            last = self.samples[-1][1] if self.samples else 0.0
            cpu_seconds = machine_cpu_seconds() if self.whole_machine else max(last, cpu_seconds)
            self.samples.append((time.time(), cpu_seconds))
            self.peak_bytes = max(self.peak_bytes, total_bytes)
            self._ended.wait(self.period_seconds)


def watched_command(
    name: str, command: Sequence[str], *, whole_machine: bool = False
) -> tuple[dict[str, Any], ProcessTree]:
    """Run a `concur run … --json` to its end: its summary, and the samples of its process tree.

    Raises SystemExit with `name` and the end of the command's log where it fails.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        with ProcessTree(process, whole_machine=whole_machine) as tree:
            output, log = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"{name}: exit code {process.returncode}: {log.decode()[-2000:]}")
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    return summary, tree


def machine_cpu_seconds() -> float:
    """CPU seconds that this machine has spent on anything since it started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait)
