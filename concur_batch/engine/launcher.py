"""Starts a SGLang server for a run and always stops it. Runs as a Ray actor, on the node that has the GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import subprocess
from pathlib import Path

from concur_batch.engine.protocol import EngineError
from concur_batch.engine.sglang import SglangEngine
from concur_batch.workload.schema import Launch

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 30.0
_LIBC = ctypes.CDLL(None)


class Launcher:
    """One server process. It dies with this process, even by kill -9, and SGLang's own children with it."""

    def __init__(self, launch: Launch, served_name: str, host: str, log: Path) -> None:
        self._launch = launch
        self._name = served_name
        self._host = host
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> str:
        """Start the server, wait until it serves, return its URL. Raises EngineError with the log's last line."""
        port = _free_port(self._host)
        url = f"http://{self._host}:{port}"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = server_command(self._launch, self._name, self._host, port)
        with self._log.open("ab") as log:
            # Popen and not asyncio's: the child must outlive no thread but this one (see _die_with_parent).
            self._process = subprocess.Popen(  # noqa: ASYNC220
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self._launch.env},
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle
                preexec_fn=_die_with_parent,
            )
        engine = SglangEngine(url, 10, 0)
        try:
            async with asyncio.timeout(self._launch.ready_seconds):
                while not await engine.ready():
                    if self._process.poll() is not None:
                        raise EngineError(
                            f"the server ended with exit code {self._process.returncode} before it served: "
                            f"{self._last_line()} (whole log: {self._log})"
                        )
                    await asyncio.sleep(0.5)
        except TimeoutError:
            await self.stop()
            raise EngineError(
                f"the server did not serve within {self._launch.ready_seconds:g} s; raise engine.launch.ready_seconds, "
                f"or see {self._log}"
            ) from None
        finally:
            await engine.close()
        return url

    async def alive(self) -> bool:
        """Whether the server process runs."""
        return self._process is not None and self._process.poll() is None

    async def stop(self) -> None:
        """Stop the server and everything that it started."""
        if self._process is None:
            return
        group = self._process.pid  # its own session's leader
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        self._process = None

    def _last_line(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it printed nothing"


def server_command(launch: Launch, served_name: str, host: str, port: int) -> list[str]:
    """The command line; the workload's own arguments come last, so that they win."""
    return [
        str(launch.python),
        *("-m", "sglang.launch_server"),
        *("--model-path", str(launch.model)),
        *("--served-model-name", served_name),
        *("--host", host),
        *("--port", str(port)),
        "--enable-metrics",
        *launch.args,
    ]


def _die_with_parent() -> None:
    """Between fork and exec: the kernel kills the child when the thread that made it, the event loop's, is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
