"""The places in which sandboxes run: how many at a time, in which namespace, under which limits."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools_env import bubblewrap
from tools_env.namespaces import UserNamespaces, agent_host_id
from tools_env.process import Launch, SandboxProcess, adopt_orphans, spawn

FILE_SIZE_LIMIT_BYTES = 512 << 20
"""The largest file that a sandboxed process can write."""

_OPEN_FILES = 1024
_NAMESPACED_RLIMITS = (5, 14)
"""The Linux release that counts RLIMIT_NPROC by user namespace; before, all of a user's processes would count."""

_SPARE_PLACES = 128
_MOST_REMAINS = 16
"""Remains in one place at which we begin to reap ourselves; the limit on processes allows for them."""


@dataclass(slots=True)
class Place:
    """Where one sandbox at a time runs: a user namespace of its own, unless bubblewrap makes one each time.

    bubblewrap's outer process ends before its inner one, whose remains then wait for the machine's process 1 to reap
    them. Until then they count in the namespace. Some take seconds over that, and in many containers process 1 never
    does it: so places are used in turn, more of them than run at a time, and at worst we reap ourselves.
    """

    namespace: int | None
    process: SandboxProcess | None = None
    _ended: list[int] = field(default_factory=list)

    def vacate(self) -> None:
        """The sandbox in it has ended."""
        if self.process and self.process.inner_pid:
            self._ended.append(self.process.inner_pid)
        self.process = None

    def remains(self) -> int:
        """How many ended sandboxes have not been reaped yet."""
        self._ended = [pid for pid in self._ended if Path(f"/proc/{pid}").exists()]
        return len(self._ended)


class SandboxRunner:
    """Starts sandboxes, `max_running` at a time. `etc` becomes their /etc.

    Raises:
        SandboxUnavailable: no sandbox can be made on this machine.
    """

    def __init__(
        self, etc: Path, max_running: int, output_limit_bytes: int, memory_limit_bytes: int, process_limit: int
    ) -> None:
        self.bubblewrap = bubblewrap.find(etc)
        self._output_limit_bytes = output_limit_bytes
        self._limits = {
            resource.RLIMIT_AS: memory_limit_bytes,
            resource.RLIMIT_FSIZE: FILE_SIZE_LIMIT_BYTES,
            resource.RLIMIT_NOFILE: _OPEN_FILES,
            resource.RLIMIT_CORE: 0,
        }
        self._namespaces = UserNamespaces() if self.bubblewrap.own_namespaces else None
        if self._namespaces and _kernel() >= _NAMESPACED_RLIMITS:
            self._limits[resource.RLIMIT_NPROC] = process_limit + _MOST_REMAINS
        self._running = asyncio.Semaphore(max_running)
        self._most_places = max_running + _SPARE_PLACES
        self._places = 0
        self._free: deque[Place] = deque()

    @property
    def owner(self) -> int | None:
        """The user that workspaces must be given to, or None if it is our own."""
        return agent_host_id() if self._namespaces and os.geteuid() == 0 else None

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Waits for a free place, first come first served, and holds it.

        Raises:
            OSError: no place could be made.
        """
        async with self._running:
            place = self._take()
            try:
                yield place
            finally:
                place.vacate()
                self._free.append(place)

    def _take(self) -> Place:
        """The place that has been free the longest, or a new one while that has remains and there are not too many."""
        if not self._free or (self._places < self._most_places and self._free[0].remains()):
            with suppress(OSError):
                place = Place(self._namespaces.make() if self._namespaces else None)
                self._places += 1
                return place
        if not self._free:
            raise OSError(errno.EAGAIN, "no user namespace could be made")
        place = self._free.popleft()
        if place.remains() >= _MOST_REMAINS:
            adopt_orphans()
        return place

    def start(
        self, place: Place, workspace: Path, command: Sequence[str], home: str, deadline_seconds: float
    ) -> SandboxProcess:
        """Starts `command` (a program and its arguments) with `workspace` as its /workspace.

        Raises:
            OSError: it could not be started.
        """
        # An agent may have locked itself out of its workspace.
        workspace.chmod(0o700)
        launch = Launch(
            self.bubblewrap.binary,
            self.bubblewrap.workspace_options(workspace),
            place.namespace,
            command,
            self.bubblewrap.environment(home),
            self._limits,
        )
        place.process = SandboxProcess(spawn(launch), self._output_limit_bytes, deadline_seconds)
        return place.process

    def close(self) -> None:
        """Frees the namespaces; nothing may run any more."""
        if self._namespaces:
            self._namespaces.close()


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))
