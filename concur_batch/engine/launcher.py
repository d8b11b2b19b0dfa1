"""Starts a server for a run, starts it again when it dies, and always stops it. A Ray actor that has its GPUs."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import ray

from concur_batch.engine.clients import connect
from concur_batch.engine.command import server_command
from concur_batch.engine.pools import EngineKind
from concur_batch.engine.process import ServerProcess
from concur_batch.engine.protocol import EngineError
from concur_batch.engine.restarts import FAILED_STARTS, Restarts
from concur_batch.workload.schema import Launch

_POLL_SECONDS = 0.5
_NOTE_SECONDS = 10.0


class Launcher:
    """One server: `host` is the address that it listens on, None for that of this Ray node. `log` is named after it."""

    def __init__(self, kind: EngineKind, launch: Launch, served_name: str, host: str | None, log: Path) -> None:
        self._kind = kind
        self._launch = launch
        self._served_name = served_name
        self._host = host or str(ray.util.get_node_ip_address())
        self._log = log
        self._process: ServerProcess | None = None
        self._watching: asyncio.Task[None] | None = None
        self._notes: list[str] = []

    async def start(self) -> str:
        """Start the server, wait until it serves, return its URL, which stays its own when it is started again.

        Raises EngineError with the log's last line: a server that does not even start once is wrongly set up.
        """
        port = _free_port(self._host)
        self._url = f"http://{self._host}:{port}"
        self._command = server_command(self._launch, self._served_name, self._host, port)
        try:
            await self._serve()
        except EngineError as error:
            await self.stop()
            raise EngineError(f"{self._log.stem}: {error} (whole log: {self._log})") from None
        self._watching = asyncio.create_task(self._watch())
        return self._url

    async def notes(self, heard: int) -> list[str]:
        """The news, one line each, without those `heard` already."""
        return self._notes[heard:]

    async def alive(self) -> bool:
        """Whether the server runs or will run again."""
        return self._watching is not None and not self._watching.done()

    async def stop(self) -> None:
        """Stop the server and everything that it started, for good."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._clear()

    async def _watch(self) -> None:
        """Start the server again whenever it dies, until that fails time and again."""
        restarts = Restarts()
        problem: str
        served_seconds: float | None
        problem, served_seconds = await self._until_death()
        while (wait_seconds := restarts.wait_seconds(served_seconds)) is not None:
            self._note(f"{problem}; it is started again in {wait_seconds:g} s")
            await self._clear()
            await asyncio.sleep(wait_seconds)
            try:
                await self._serve()
            except EngineError as error:
                problem, served_seconds = str(error), None
                continue
            self._note("the server serves again")
            problem, served_seconds = await self._until_death()
        await self._clear()
        self._note(f"{problem}; {FAILED_STARTS} starts in a row failed, it is not started again")

    async def _serve(self) -> None:
        """Start the server and wait until it takes requests. Raises EngineError where it does not."""
        try:
            process = self._process = ServerProcess(self._command, self._launch.env, self._log)
        except OSError as error:
            raise EngineError(f"{self._command[0]} cannot be started: {error.strerror}") from None
        began = noted = time.monotonic()
        engine = connect(self._kind, self._url, 10, 0)
        try:
            while process.exit_code is None:
                if await engine.ready():
                    return
                now = time.monotonic()
                if now - began > self._launch.ready_seconds:
                    raise EngineError(
                        f"the server did not serve within {self._launch.ready_seconds:g} s; raise "
                        f"engine.launch.ready_seconds if that is too short for it: {process.last_line()}"
                    )
                if now - noted >= _NOTE_SECONDS:
                    noted = now
                    self._note(f"starts since {now - began:.0f} s: {process.last_line()}")
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            await engine.close()
        raise EngineError(
            f"the server ended with exit code {process.exit_code} before it served: {process.last_line()}"
        )

    async def _until_death(self) -> tuple[str, float]:
        """What to say of it, and how many seconds it had served."""
        assert self._process is not None
        began = time.monotonic()
        while self._process.exit_code is None:  # noqa: ASYNC110 - no event tells of a process
            await asyncio.sleep(_POLL_SECONDS)
        problem = f"the server ended with exit code {self._process.exit_code}: {self._process.last_line()}"
        return problem, time.monotonic() - began

    async def _clear(self) -> None:
        """Stop what is left of the server: a child that outlives it would hold its port or its memory."""
        if self._process is not None:
            await self._process.stop()
            self._process = None

    def _note(self, text: str) -> None:
        self._notes.append(f"{self._log.stem}: {text}")


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
