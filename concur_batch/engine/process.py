"""A server's process and all that it starts, which never outlive the process that started them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 30.0
_TAIL_BYTES = 8192
_LIBC = ctypes.CDLL(None)
# Waits for a line, and leaves. If its standard input ends without one, whoever holds the other end is gone, by kill -9
# too. It is no child of ours, but init's: when Ray ends an actor, it kills the actor's children first, and no further.
_GUARD = ("/bin/sh", "-c", 'exec 3<&0; { read -r _ <&3 || kill -s KILL -- "-$1"; } &', "guard")


class ServerProcess:
    """Starts on construction, in a process group of its own, with its output appended to `log`. Raises OSError.

    The kernel kills the server itself when the thread that called this ends. The guard, a shell, kills the rest of the
    group: vLLM's engine core does not notice that its parent is gone, and would hold on to the GPU.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle
                preexec_fn=_die_with_parent,
            )
        shell = subprocess.Popen(
            [*_GUARD, str(self._server.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        shell.wait()  # what it has put into the background is the guard
        assert shell.stdin is not None
        self._leash = shell.stdin

    @property
    def exit_code(self) -> int | None:
        """None while it runs; below 0 where a signal ended it."""
        return self._server.poll()

    def last_line(self) -> str:
        """Of its log."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it printed nothing"

    async def stop(self) -> None:
        """Stop the server and everything that it started, or what is left of it."""
        self._signal_group(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._server.wait, _STOP_SECONDS)
        self._signal_group(signal.SIGKILL)
        await asyncio.to_thread(self._server.wait)
        with contextlib.suppress(BrokenPipeError), self._leash:
            self._leash.write(b"\n")

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, number)  # its own session's leader


def _die_with_parent() -> None:
    """Between fork and exec: the kernel kills the child when the thread that made it, the event loop's, is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
