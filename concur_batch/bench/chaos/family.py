"""The processes of a command: those that faults befall, and those that must not outlive it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from concur_batch.bench.chaos.plan import Kind

MARK = "CONCUR_CHAOS"
"""An environment variable that all processes of a run inherit but those in sandboxes."""

_POLL_SECONDS = 0.3
# What the first words of a process's command line are.
_ACTORS: Mapping[Kind, str] = {
    "host": "ray::AgentHost",
    "host frozen": "ray::AgentHost",
    "recorder": "ray::Recorder",
    "controller": "ray::Controller",
    "launcher": "ray::Launcher",
}
_PROGRAMS: Mapping[Kind, str] = {"raylet": "raylet", "GCS": "gcs_server", "tool hung": "bwrap"}
_ENGINE = "sglang.launch_server"


def descendants(command: psutil.Process) -> list[psutil.Process]:
    """All that it has started, and what those have, as far as it lives."""
    try:
        return command.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def of_kind(processes: Iterable[psutil.Process], kind: Kind) -> list[psutil.Process]:
    """Those that a fault of that kind may befall; of a tool that hangs, its sandbox and what runs in there."""
    found = [process for process in processes if _is(process, kind)]
    return found if kind != "tool hung" else [inner for outer in found for inner in (outer, *descendants(outer))]


def survivors(mark: str, run: str, seen: Iterable[psutil.Process], patience_seconds: float) -> list[psutil.Process]:
    """The processes of a run of that mark and name that live on after so long: those that were `seen` among its own,
    those with the mark, and sandboxes whose workspace is the run's."""
    deadline = time.monotonic() + patience_seconds
    while True:
        left = {process for process in (*seen, *_marked(mark, run)) if _lives(process)}
        if not left or time.monotonic() > deadline:
            return list(left)
        time.sleep(_POLL_SECONDS)


def _is(process: psutil.Process, kind: Kind) -> bool:
    try:
        line = process.cmdline()
    except psutil.Error:
        return False
    if not line:
        return False
    if kind == "engine":
        return _ENGINE in line
    return line[0].startswith(_ACTORS[kind]) if kind in _ACTORS else Path(line[0]).name == _PROGRAMS[kind]


def _marked(mark: str, run: str) -> list[psutil.Process]:
    entry, workspaces = f"{MARK}={mark}".encode(), f"{run}/workspaces/live-".encode()
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            proc = Path(f"/proc/{process.pid}")
            marked = entry in (proc / "environ").read_bytes().split(b"\0")
            if marked or workspaces in (proc / "mountinfo").read_bytes():
                found.append(process)
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
