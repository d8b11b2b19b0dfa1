"""What a dead run has left behind: the processes of its own Ray, and servers that it launched."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import psutil

_DRIVER = "CONCUR_DRIVER"
# The same in a Ray session's directory. Ray's agents give themselves a title, which overwrites their environment, or
# most of it; their logs are in there.
_SESSION_FILE = "concur_driver"
_IN_SESSION = re.compile(r"(/.+/session_[^/]+)/logs/")
_RAY_TITLE = "ray::"
# So long they may take to end by themselves: the kernel tells most of them that their parent is gone.
_PATIENCE_SECONDS = 2.0
_DEATH_SECONDS = 10.0


def sign() -> None:
    """From now on, all that this process starts, and all that those start, tells of it in its environment."""
    os.environ[_DRIVER] = _signature()


def sign_session(directory: Path) -> None:
    """The Ray session of that directory is this process's own."""
    with suppress(OSError):  # a full disk, where the environments have to do
        (directory / _SESSION_FILE).write_text(_signature())


def end_leftovers() -> int:
    """End the leftovers, and wait for that; how many had to be ended.

    Those of a Ray cluster that was there before are not among them: it ends what a dead driver has left itself.
    """
    found = leftovers()
    if not found:
        return 0
    _, alive = psutil.wait_procs(found, _PATIENCE_SECONDS)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, _DEATH_SECONDS)
    return len(alive)


def leftovers() -> list[psutil.Process]:
    """The processes of this machine whose run is dead."""
    ours = _namespace_of(os.getpid())
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.Error):
            driver = _driver_of(process)
            # Elsewhere a number means another process.
            if driver is not None and _namespace_of(process.pid) == ours and not _lives(*driver):
                found.append(process)
    return found


def _signature() -> str:
    return f"{os.getpid()} {_start_of(os.getpid())}"


def _driver_of(process: psutil.Process) -> tuple[int, str] | None:
    """The process that signed the environment of this one, or its Ray session: its id and when it started."""
    signed = _signed_environment(process.pid)
    if signed is None and process.name().startswith(_RAY_TITLE):
        signed = _signed_session(process.pid)
    number, _, start = (signed or "").partition(" ")
    return (int(number), start) if number.isdecimal() else None


def _signed_environment(pid: int) -> str | None:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    signed = [entry.partition(b"=")[2].decode() for entry in entries if entry.startswith(f"{_DRIVER}=".encode())]
    return signed[0] if signed else None


def _signed_session(pid: int) -> str | None:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            session = _IN_SESSION.match(str(descriptor.readlink()))
            if session is not None:
                return Path(session[1], _SESSION_FILE).read_text()
    return None


def _lives(pid: int, start: str) -> bool:
    try:
        return _start_of(pid) == start
    except FileNotFoundError:
        return False


def _start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks: with its id, that tells it from all others since the boot."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _namespace_of(pid: int) -> str:
    return str(Path(f"/proc/{pid}/ns/pid").readlink())
