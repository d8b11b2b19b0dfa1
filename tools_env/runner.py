"""The places in which sandboxes run: how many at a time, in which namespace, under which limits."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tools_env import bubblewrap
from tools_env.namespaces import UserNamespaces, agent_host_id
from tools_env.process import Launch, SandboxProcess, spawn

FILE_SIZE_LIMIT_BYTES = 512 << 20
"""The largest file that a sandboxed process can write."""

_OPEN_FILES = 1024
_NAMESPACED_RLIMITS = (5, 14)
"""The Linux release that counts RLIMIT_NPROC by user namespace; before, all of a user's processes would count."""


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
        self._namespaces = UserNamespaces(max_running) if self.bubblewrap.own_namespaces else None
        if self._namespaces and _kernel() >= _NAMESPACED_RLIMITS:
            self._limits[resource.RLIMIT_NPROC] = process_limit
        self._free: list[int | None] = [*self._namespaces.descriptors] if self._namespaces else [None] * max_running
        self._places = asyncio.Semaphore(max_running)

    @property
    def owner(self) -> int | None:
        """The user that workspaces must be given to, or None if it is our own."""
        return agent_host_id() if self._namespaces and os.geteuid() == 0 else None

    @asynccontextmanager
    async def place(self) -> AsyncIterator[int | None]:
        """Waits for a free place, first come first served, and holds it: the user namespace to start a sandbox in."""
        async with self._places:
            namespace = self._free.pop()
            try:
                yield namespace
            finally:
                self._free.append(namespace)

    def start(
        self, place: int | None, workspace: Path, command: Sequence[str], home: str, deadline_seconds: float
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
            place,
            command,
            self.bubblewrap.environment(home),
            self._limits,
        )
        return SandboxProcess(spawn(launch), self._output_limit_bytes, deadline_seconds)

    def close(self) -> None:
        """Frees the namespaces; nothing may run any more."""
        if self._namespaces:
            self._namespaces.close()


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))
