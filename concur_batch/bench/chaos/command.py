"""A `concur run` or `concur resume`, and how far its run is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from concur_batch.bench.chaos.family import MARK
from concur_batch.bench.chaos.plan import Moment
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run

_POLL_SECONDS = 0.15
# Without this, whoever has lost the GCS goes on asking for it for a minute before it gives up.
_ENVIRONMENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "8"}


@dataclass(frozen=True, slots=True)
class Progress:
    """Turns and ends that are on record."""

    turns: int
    ended: int


def run_below(output: Path) -> Path | None:
    """The only run there, if it has come so far as to have a manifest."""
    runs = list(output.glob("*/manifest.json"))
    assert len(runs) <= 1, "a run is resumed, and not begun anew"
    return runs[0].parent if runs else None


def progress_of(output: Path) -> Progress:
    """Of the only run below `output`."""
    run_dir = run_below(output)
    if run_dir is None:
        return Progress(0, 0)
    try:
        run = Run(run_dir)
        return Progress(run.table("turns", ["agent_id"]).num_rows, run.agents_final().num_rows)
    except TraceError:  # it is just being written
        return Progress(0, 0)


class Command:
    """Begins on construction. `whole` is how far the run is in the end; its output goes to files named after `log`."""

    def __init__(self, arguments: Sequence[str], output: Path, whole: Progress, mark: str, log: Path) -> None:
        self._output = output
        self._whole = whole
        self._before = progress_of(output)
        self._began_seconds = time.monotonic()
        self._ended_seconds: float | None = None  # when the last agent's end was seen
        with log.with_suffix(".out").open("wb") as out, log.with_suffix(".err").open("wb") as err:
            self._popen = subprocess.Popen(
                [str(Path(sys.executable).with_name("concur")), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **_ENVIRONMENT, MARK: mark},
            )
        self.process = psutil.Process(self._popen.pid)

    def until(self, moment: Moment) -> bool:
        """Wait for the moment; False if the command ended first."""
        while self._popen.poll() is None:
            if self._reached(moment):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def pause(self, seconds: float) -> bool:
        """Wait; False if the command has ended."""
        try:
            self._popen.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            return True

    def end(self, patience_seconds: float) -> int | None:
        """Wait for the end; the exit code. None where it had to be killed after so long."""
        try:
            return self._popen.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
            return None

    def _reached(self, moment: Moment) -> bool:
        if moment.phase == "start":
            return time.monotonic() - self._began_seconds >= moment.amount
        now = progress_of(self._output)
        if moment.phase == "work":
            missing = self._whole.turns - self._before.turns
            return now.turns >= self._before.turns + moment.amount * missing
        if now.ended < self._whole.ended:
            return False
        self._ended_seconds = self._ended_seconds or time.monotonic()
        return time.monotonic() - self._ended_seconds >= moment.amount
