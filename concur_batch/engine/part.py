"""The part of a launched server that runs on one node: all of it, where the server has only one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from concur_batch.engine.process import ServerProcess

_POLL_SECONDS = 0.2
# Longer than a process takes that must be killed in the end (process.py); a node that is gone may never answer.
_STOP_SECONDS = 40.0


class Part:
    """One process at a time. `host` is the address that it listens on, None for that of this Ray node."""

    def __init__(self, host: str | None = None) -> None:
        self._host = host
        self._process: ServerProcess | None = None

    async def address(self) -> tuple[str, int]:
        """The host, and a port that is free there now."""
        host = self._host or str(ray.util.get_node_ip_address())
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, int(probe.getsockname()[1])

    async def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> str | None:
        """Start it; where that cannot be done, why."""
        try:
            self._process = ServerProcess(command, env, log)
        except OSError as error:
            return f"{command[0]} cannot be started: {error.strerror}"
        return None

    def last_line(self) -> str:
        """Of its log, once it was started."""
        assert self._process is not None
        return self._process.last_line()

    async def ended(self) -> tuple[str, str]:
        """Wait for its end, which only `stop` brings without cause: how it ended, and the last line of its log."""
        process = self._process
        assert process is not None
        while process.exit_code is None:  # noqa: ASYNC110 - no event tells of a process
            await asyncio.sleep(_POLL_SECONDS)
        return f"ended with exit code {process.exit_code}", process.last_line()

    async def stop(self) -> None:
        """Stop it and everything that it started, or what is left: a child that outlives it would hold its memory."""
        if self._process is not None:
            await self._process.stop()
            self._process = None


class RemotePart:
    """A part on another node, in an actor of its own, which ends with the actor that made this one.

    `where` is Ray's scheduling strategy for it. RayError is raised where its node or its actor is gone.
    """

    def __init__(self, where: Any, gpus: int) -> None:
        factory = ray.remote(Part).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=where)
        self._actor: Any = factory.remote()
        self._is_placed = False

    async def address(self) -> tuple[str, int]:
        """Waits until it has its place, which takes as long as others hold it."""
        host, port = await self._actor.address.remote()
        self._is_placed = True
        return host, port

    async def start(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> str | None:
        return await self._actor.start.remote(command, env, log)  # type: ignore[no-any-return]

    async def ended(self) -> tuple[str, str]:
        try:
            return await self._actor.ended.remote()  # type: ignore[no-any-return]
        except RayError:
            return "is gone", "its node or its actor has died"

    async def stop(self) -> None:
        if self._is_placed:
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(self._stopped(), _STOP_SECONDS)
        ray.kill(self._actor)

    async def _stopped(self) -> None:
        await self._actor.stop.remote()
