"""Agents' tools in bubblewrap sandboxes: the environment and its sessions.

What holds for every bash and python call: the agent sees its own workspace (/workspace, read and write), the system's
programs (/usr, read-only), a private /tmp that lives as long as the call, its own processes, and nothing else: no
network, no file of the host, no other agent. It has no capability and cannot make user namespaces.

Limited: wall time; address space of each process; number of processes (on Linux 5.14 or later, see `bubblewrap.py`
for where it is not applied); size of each file; /tmp and /dev/shm; open files; output kept. Not limited: CPU time
within the deadline, the disk space of the workspace in all, memory over all processes of a sandbox (at most processes
times address space). The host path of the workspace can be read in /proc/self/mountinfo.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from tools_env.bubblewrap import SandboxUnavailable, check, visible_directories
from tools_env.catalogue import CATALOGUE
from tools_env.leftovers import LiveDirectory, sweep
from tools_env.runner import SandboxRunner
from tools_env.session import SandboxSession, check_file_path
from tools_env.snapshots import AS_OPENED, SAVED, Snapshots, forget_all, forget_others, restore
from tools_env.spec import ToolSpec
from tools_env.trees import remove_tree
from tools_env.workspace import FileProblem, Workspace

__all__ = ["SandboxEnvironment", "SandboxSession", "SandboxUnavailable", "check", "forget_all", "sweep"]


SANDBOXES_PER_CORE = 3
"""How many sandboxes run at a time unless told otherwise: some wait for the disk or sleep while others compute."""


class SandboxEnvironment:
    """The tools `names`, each agent in its own workspace below `root`.

    At most `max_running` sandboxes run at a time (3 per core unless given); further calls wait their turn, which is
    what `ToolResult.queue_seconds` counts. `memory_limit_bytes` is the address space of each process and
    `process_limit` the number of processes (threads too, and two of bubblewrap's own) in a running sandbox, give or
    take the remains of earlier ones (at most 16, see `runner.py`).
    Any number of environments, in any number of processes, can share a root.

    Raises:
        ValueError: an unknown tool, or a root that the sandboxes would see.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        deadline_seconds: float = 30.0,
        output_limit_bytes: int = 16_384,
        memory_limit_bytes: int = 4 << 30,
        process_limit: int = 128,
        max_running: int | None = None,
    ) -> None:
        if unknown := [name for name in names if name not in CATALOGUE]:
            raise ValueError(f"no such tool: {', '.join(unknown)}; there are {', '.join(CATALOGUE)}")
        self._root = root.resolve()
        for visible in visible_directories():
            if self._root.is_relative_to(visible):
                raise ValueError(f"{self._root}: agents can read {visible}; put the workspaces elsewhere")
        self._deadline_seconds = deadline_seconds
        self._output_limit_bytes = output_limit_bytes
        self._specs = [CATALOGUE[name] for name in names]
        self._memory_limit_bytes = memory_limit_bytes
        self._process_limit = process_limit
        self._max_running = max_running or SANDBOXES_PER_CORE * (os.cpu_count() or 1)
        self._starting = asyncio.Lock()
        self._live: LiveDirectory | None = None
        self._runner: SandboxRunner | None = None
        self._sessions: dict[str, SandboxSession] = {}

    def specs(self) -> list[ToolSpec]:
        return self._specs

    async def open(self, key: str, files: Mapping[str, str], mark: str | None = None) -> SandboxSession:
        """A fresh workspace holding `files`, or one as it was saved under the mark. Other things that were saved of
        the key are removed.

        Raises:
            ValueError: a bad file path, a key too long for a directory's name, or one that is open already.
            SandboxUnavailable: no sandbox can be made on this machine.
            StateLost: what was saved is gone or damaged.
        """
        name = _directory_name(key)
        for path in files:
            check_file_path(path)
        async with self._starting:
            live, runner = await self._start()
        if name in self._sessions:
            raise ValueError(f"session {key!r} is open already")
        workspace = Workspace(live.path / name, runner.owner)

        async def on_close(keep: bool) -> Path | None:
            try:
                return await asyncio.to_thread(live.discard, name, keep)
            finally:
                self._sessions.pop(name, None)

        session = SandboxSession(
            runner, workspace, self._specs, self._deadline_seconds, self._output_limit_bytes, on_close
        )
        self._sessions[name] = session
        try:
            session.snapshots = await asyncio.to_thread(
                _fill, workspace, runner.owner, files, self._root / SAVED / name, mark
            )
        except BaseException as error:
            await session.close()
            if isinstance(error, FileProblem):
                raise ValueError(f"workspace file {error}") from None
            raise
        return session

    async def forget(self, key: str) -> None:
        """Removes the key's snapshots."""
        await asyncio.to_thread(remove_tree, str(self._root / SAVED / _directory_name(key)))

    async def close(self) -> None:
        """Closes every open session and removes all but the kept workspaces and what was saved."""
        for session in list(self._sessions.values()):
            await session.close()
        if self._runner is not None:
            self._runner.close()
            self._runner = None
        if self._live is not None:
            await asyncio.to_thread(self._live.remove)
            self._live = None

    async def _start(self) -> tuple[LiveDirectory, SandboxRunner]:
        if self._live is None:
            self._live = await asyncio.to_thread(LiveDirectory, self._root)
        if self._runner is None:
            etc = self._live.path / ".etc"
            etc.mkdir(exist_ok=True)
            self._runner = await asyncio.to_thread(
                SandboxRunner,
                etc,
                self._max_running,
                self._output_limit_bytes,
                self._memory_limit_bytes,
                self._process_limit,
            )
        return self._live, self._runner


def _fill(
    workspace: Workspace, owner: int | None, files: Mapping[str, str], saved: Path, mark: str | None
) -> Snapshots:
    forget_others(saved, mark)
    workspace.path.mkdir(0o700)
    if owner is not None:
        try:
            os.chown(workspace.path, owner, owner)
        except OSError as error:
            raise SandboxUnavailable(
                f"{workspace.path.parent.parent}: root cannot give files to another user there ({error.strerror}); "
                "put the workspaces on a local disk"
            ) from None
    if mark in (None, AS_OPENED):
        for path, text in files.items():
            workspace.write(path, text.encode())
    else:
        restore(saved, mark, workspace.path, owner)
    return Snapshots(saved, workspace.path, mark or AS_OPENED)


def _directory_name(key: str) -> str:
    name = quote(key, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if not 0 < len(name) <= 255:
        raise ValueError(f"session key {key!r:.80}: must have 1 to 255 characters once quoted for a directory's name")
    return name
