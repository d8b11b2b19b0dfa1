"""Starts a server for a run, starts it again when it dies, and always stops it. A Ray actor that has its GPUs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.exceptions import RayError

from concur_batch.engine.clients import connect
from concur_batch.engine.command import Place, server_command, server_env
from concur_batch.engine.part import Part, RemotePart
from concur_batch.engine.protocol import EngineError
from concur_batch.engine.restarts import FAILED_STARTS, Restarts
from concur_batch.workload.schema import LaunchedEngine

_POLL_SECONDS = 0.5
_NOTE_SECONDS = 10.0


class Launcher:
    """One server: `host` is the address that it listens on, None for that of this Ray node. `log` is named after it.

    Where it spans several nodes, its part here takes the requests, and `others` are Ray's scheduling strategies of the
    other parts, each of which holds `gpus`. Their logs lie beside `log`. All parts start, and end, together.
    """

    def __init__(
        self,
        engine: LaunchedEngine,
        served_name: str,
        host: str | None,
        log: Path,
        others: Sequence[Any] = (),
        gpus: int = 0,
    ) -> None:
        assert engine.launch is not None
        self._engine = engine
        self._launch = engine.launch
        self._served_name = served_name
        self._log = log
        self._others = others
        self._gpus = gpus
        self._first = Part(host)
        self._parts: list[Part | RemotePart] = []
        self._ends: list[asyncio.Task[tuple[str, str]]] = []
        self._watching: asyncio.Task[None] | None = None
        self._notes: list[str] = []

    async def start(self) -> str:
        """Start the server, wait until it serves, return its URL, which stays its own when it is started again.

        Raises EngineError with the log's last line: a server that does not even start once is wrongly set up.
        """
        self._host, self._port = await self._first.address()
        self._url = f"http://{self._host}:{self._port}"
        try:
            await self._serve()
        except EngineError as error:
            await self.stop()
            logs = self._log if not self._others else f"{self._log}, and those of the other nodes beside it"
            raise EngineError(f"{self._log.stem}: {error} (whole log: {logs})") from None
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
        """Start all parts and wait until the server takes requests. Raises EngineError where it does not."""
        began = noted = time.monotonic()
        try:
            async with asyncio.timeout(self._launch.ready_seconds):
                await self._start_parts()
        except TimeoutError:
            raise EngineError(
                f"its nodes had no place for it within {self._launch.ready_seconds:g} s (engine.launch.ready_seconds)"
            ) from None
        except RayError as error:
            raise EngineError(f"it has no place on its nodes: {str(error).splitlines()[0]}") from None
        engine = connect(self._engine.kind, self._url, 10, 0)
        try:
            while not any(end.done() for end in self._ends):
                if await engine.ready():
                    return
                now = time.monotonic()
                if now - began > self._launch.ready_seconds:
                    raise EngineError(
                        f"the server did not serve within {self._launch.ready_seconds:g} s; raise "
                        f"engine.launch.ready_seconds if that is too short for it: {self._first.last_line()}"
                    )
                if now - noted >= _NOTE_SECONDS:
                    noted = now
                    self._note(f"starts since {now - began:.0f} s: {self._first.last_line()}")
                await asyncio.wait(self._ends, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await engine.close()
        raise EngineError(self._ended(" before it served"))

    async def _start_parts(self) -> None:
        """On all nodes at once: none serves before all have found each other."""
        self._parts = [self._first, *(RemotePart(other, self._gpus) for other in self._others)]
        # Where they meet changes with each start, since the port of the last one may not be free yet.
        meeting, *others = await asyncio.gather(*(part.address() for part in self._parts))
        addresses = [(self._host, self._port), *others]
        places = [Place(host, port, node, meeting) for node, (host, port) in enumerate(addresses)]
        starts = (
            part.start(
                server_command(self._engine, self._served_name, place),
                server_env(self._launch, place),
                self._log if place.node == 0 else self._log.with_stem(f"{self._log.stem}-node{place.node}"),
            )
            for part, place in zip(self._parts, places, strict=True)
        )
        for problem in await asyncio.gather(*starts):
            if problem is not None:
                raise EngineError(problem)
        self._ends = [asyncio.create_task(part.ended()) for part in self._parts]

    async def _until_death(self) -> tuple[str, float]:
        """What to say of it, and how many seconds it had served."""
        began = time.monotonic()
        await asyncio.wait(self._ends, return_when=asyncio.FIRST_COMPLETED)
        return self._ended(), time.monotonic() - began

    def _ended(self, when: str = "") -> str:
        """What to say of the first part that has ended: the others follow it, or would wait for it."""
        node = next(node for node, end in enumerate(self._ends) if end.done())
        how, last_line = self._ends[node].result()
        who = "the server" if not self._others else f"the server's part on node {node}"
        return f"{who} {how}{when}: {last_line}"

    async def _clear(self) -> None:
        """Stop what is left of the server."""
        for end in self._ends:
            end.cancel()
        await asyncio.gather(*(part.stop() for part in self._parts))
        self._parts, self._ends = [], []

    def _note(self, text: str) -> None:
        self._notes.append(f"{self._log.stem}: {text}")
