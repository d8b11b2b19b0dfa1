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
import fcntl
import os
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools_env import bubblewrap, search_program
from tools_env.bubblewrap import WORKSPACE, Bubblewrap, SandboxUnavailable, check
from tools_env.catalogue import CATALOGUE
from tools_env.file_tools import FILE_TOOLS, run_file_tool
from tools_env.namespaces import UserNamespaces, agent_host_id
from tools_env.output import BoundedOutput
from tools_env.process import Launch, SandboxProcess, spawn
from tools_env.spec import Status, ToolResult, ToolSpec, argument_error
from tools_env.trees import remove_tree
from tools_env.workspace import FileProblem, Workspace, split_path

__all__ = ["SandboxEnvironment", "SandboxSession", "SandboxUnavailable", "check", "sweep"]

FILE_SIZE_LIMIT_BYTES = 512 << 20
"""The largest file that a sandboxed process can write."""

_OPEN_FILES = 1024
_COMMAND_BYTES = 128 * 1024 - 1  # Linux: MAX_ARG_STRLEN, less the closing NUL
_NAMESPACED_RLIMITS = (5, 14)
_LIVE = "live-"
_LOCK = "lock"
_KEPT = "kept"


class SandboxEnvironment:
    """The tools `names`, each agent in its own workspace below `root`.

    At most `max_running` sandboxes run at a time (3 per core unless given); further calls wait their turn, which is
    what `ToolResult.queue_seconds` counts. `memory_limit_bytes` is the address space of each process and
    `process_limit` the number of processes (threads too, and two of bubblewrap's own) in a running sandbox.
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
        self.root = root.resolve()
        for visible in bubblewrap.visible_directories():
            if self.root.is_relative_to(visible):
                raise ValueError(f"{self.root}: agents can read {visible}; put the workspaces elsewhere")
        self.deadline_seconds = deadline_seconds
        self.output_limit_bytes = output_limit_bytes
        self.bubblewrap: Bubblewrap | None = None
        self._specs = [CATALOGUE[name] for name in names]
        self._limits = {
            resource.RLIMIT_AS: memory_limit_bytes,
            resource.RLIMIT_FSIZE: FILE_SIZE_LIMIT_BYTES,
            resource.RLIMIT_NOFILE: _OPEN_FILES,
            resource.RLIMIT_CORE: 0,
        }
        self._process_limit = process_limit
        self._max_running = max_running or 3 * (os.cpu_count() or 1)
        self._places = asyncio.Semaphore(self._max_running)
        self._namespaces: UserNamespaces | None = None
        self._free: list[int | None] = []
        self._starting = asyncio.Lock()
        self._live: Path | None = None
        self._lock_file: int | None = None
        self._sessions: dict[str, SandboxSession] = {}

    def specs(self) -> list[ToolSpec]:
        return self._specs

    async def open(self, key: str, files: Mapping[str, str]) -> SandboxSession:
        """A fresh workspace holding `files`.

        Raises:
            ValueError: a bad file path, a key too long for a directory's name, or one that is open already.
            SandboxUnavailable: no sandbox can be made on this machine.
        """
        name = _directory_name(key)
        if name in self._sessions:
            raise ValueError(f"session {key!r} is open already")
        for path in files:
            _check_initial_path(path)
        async with self._starting:
            if self._live is None:
                await asyncio.to_thread(self._start)
        assert self._live is not None
        owner = agent_host_id() if self._own_namespaces and os.geteuid() == 0 else None
        workspace = Workspace(self._live / name, owner)
        session = SandboxSession(self, name, workspace)
        self._sessions[name] = session
        try:
            await asyncio.to_thread(_fill, workspace, owner, files)
        except BaseException as error:
            await session.close()
            if isinstance(error, FileProblem):
                raise ValueError(str(error)) from None
            raise
        return session

    async def close(self) -> None:
        """Closes every open session and removes all but the kept workspaces."""
        for session in list(self._sessions.values()):
            await session.close()
        live, self._live = self._live, None
        if live is not None:
            await asyncio.to_thread(remove_tree, str(live))
        if self._namespaces is not None:
            self._namespaces.close()
            self._namespaces = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    async def run(
        self, session: SandboxSession, command: Sequence[str], deadline_seconds: float, home: str
    ) -> ToolResult:
        """Runs `command` (program and arguments) in the session's sandbox, as soon as a place is free."""
        assert self.bubblewrap is not None
        queued = time.monotonic()
        async with self._places:
            started = time.monotonic()
            if session.closed:
                return ToolResult("crashed", "the session was closed", queue_seconds=started - queued)
            namespace = self._free.pop()
            try:
                launch = Launch(
                    self.bubblewrap.binary,
                    session.options,
                    namespace,
                    command,
                    self.bubblewrap.environment(home),
                    self._limits,
                )
                process = await self._run_process(session, launch, deadline_seconds)
            except OSError as error:
                return ToolResult(
                    "crashed", f"the sandbox could not be started: {error}", queue_seconds=started - queued
                )
            finally:
                self._free.append(namespace)
            seconds = time.monotonic() - started
        return _process_result(process, deadline_seconds, seconds, started - queued)

    async def _run_process(self, session: SandboxSession, launch: Launch, deadline_seconds: float) -> SandboxProcess:
        # An agent may have locked itself out of its workspace.
        session.workspace.chmod(0o700)
        process = SandboxProcess(spawn(launch), self.output_limit_bytes, deadline_seconds)
        session.running.add(process)
        try:
            await process.wait()
        finally:
            session.running.discard(process)
        return process

    @property
    def _own_namespaces(self) -> bool:
        return self.bubblewrap is not None and self.bubblewrap.own_namespaces

    def _start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        live, self._lock_file = _lock_live_directory(self.root)
        etc = live / ".etc"
        etc.mkdir()
        self.bubblewrap = bubblewrap.find(etc)
        if self.bubblewrap.own_namespaces:
            self._namespaces = UserNamespaces(self._max_running)
            self._free = [*self._namespaces.descriptors]
            if _kernel() >= _NAMESPACED_RLIMITS:
                self._limits[resource.RLIMIT_NPROC] = self._process_limit
        else:
            self._free = [None] * self._max_running
        self._live = live

    def forget(self, name: str) -> None:
        """Called by a session once it is closed."""
        self._sessions.pop(name, None)


class SandboxSession:
    """One agent's workspace and tools. Calls may run side by side."""

    def __init__(self, environment: SandboxEnvironment, name: str, workspace: Workspace) -> None:
        assert environment.bubblewrap is not None
        self.options = environment.bubblewrap.workspace_options(workspace.path)
        self.running: set[SandboxProcess] = set()
        self.closed = False
        self._environment = environment
        self._name = name
        self._files = workspace
        self._path = workspace.path
        self._specs = {spec.name: spec for spec in environment.specs()}

    @property
    def workspace(self) -> Path:
        """The workspace on the host. What is in it is the agent's and not to be trusted."""
        return self._path

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Runs a tool.

        Raises:
            RuntimeError: the session is closed.
        """
        self._check_open()
        if (spec := self._specs.get(name)) is None:
            return self._result("error", f"there is no tool {name!r:.80}; the tools are: {', '.join(self._specs)}")
        if problem := argument_error(spec, arguments):
            return self._result("error", problem)
        if name == "submit":
            return self._result("ok", "submitted", answer=arguments["answer"])
        if name in FILE_TOOLS:
            return await self._call_file_tool(name, arguments)
        try:
            command = self._command(name, arguments)
        except FileProblem as problem:
            return self._result("error", str(problem))
        return await self._environment.run(self, command, self._environment.deadline_seconds, WORKSPACE)

    async def run_command(self, command: str, deadline_seconds: float) -> ToolResult:
        """Runs a bash command of the operator's, not the agent's: HOME is outside of the workspace, so that nothing the
        agent left in its home (start-up files, Python's user site) is loaded.

        Raises:
            RuntimeError: the session is closed.
        """
        self._check_open()
        return await self._environment.run(self, ["/bin/bash", "-c", "--", command], deadline_seconds, "/tmp")

    async def put_files(self, files: Mapping[str, str]) -> None:
        """Ends what still runs in the session and writes files, whatever the agent has put in their way.

        Raises:
            ValueError: a path leads out of the workspace.
            RuntimeError: the session is closed.
        """
        self._check_open()
        for path in files:
            _check_initial_path(path)
        await self.stop_running()
        self._path.chmod(0o700)
        for path, text in files.items():
            await asyncio.to_thread(self._files.force, path, text.encode())

    async def stop_running(self) -> None:
        """Kills every running call, and returns when all its processes are dead."""
        running = list(self.running)
        for process in running:
            process.kill()
        for process in running:
            await process.wait()

    async def close(self, keep: bool = False) -> None:
        """Ends what runs and removes the workspace, or moves it to `kept/` in the root. Closing twice is fine."""
        if self.closed:
            return
        self.closed = True
        await self.stop_running()
        if keep:
            kept = self._environment.root / _KEPT / self._name
            await asyncio.to_thread(_keep, self._path, kept)
            self._path = kept
        else:
            await asyncio.to_thread(remove_tree, str(self._path))
        self._environment.forget(self._name)

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError(f"session {self._name!r} is closed")

    def _command(self, name: str, arguments: dict[str, Any]) -> list[str]:
        assert self._environment.bubblewrap is not None
        python = self._environment.bubblewrap.python
        match name:
            case "bash":
                command = ["/bin/bash", "-c", "--", arguments["command"]]
            case "python":
                command = [python, "-u", "-c", arguments["code"]]
            case _:
                path = "/".join(split_path(arguments.get("path", ""))) or "."
                command = [python, "-I", "-S", "-c", _SEARCH_SOURCE, arguments["pattern"], path]
        for argument in command:
            if (size := len(argument.encode())) > _COMMAND_BYTES:
                raise FileProblem(f"{name}: {size} bytes are too many, {_COMMAND_BYTES} at most: run a file instead")
        return command

    async def _call_file_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._environment.deadline_seconds):
                done, output = await asyncio.to_thread(run_file_tool, self._files, name, arguments)
        except TimeoutError:
            return self._result("timeout", f"{name} took too long", time.monotonic() - started)
        kept = BoundedOutput(self._environment.output_limit_bytes)
        kept.feed(output)
        return ToolResult(
            "ok" if done else "error",
            kept.text(),
            time.monotonic() - started,
            truncated=kept.truncated,
            output_bytes=kept.total_bytes,
        )

    def _result(self, status: Status, output: str, seconds: float = 0.0, answer: str | None = None) -> ToolResult:
        return ToolResult(status, output, seconds, output_bytes=len(output.encode()), answer=answer)


def sweep(root: Path) -> int:
    """Removes the workspaces that dead runs left below `root`, and returns the number of environments removed.

    Environments whose process lives and kept workspaces stay.
    """
    swept = 0
    for live in sorted(root.glob(f"{_LIVE}*")):
        try:
            lock = os.open(live / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(str(live))
            swept += 1
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
    return swept


def _lock_live_directory(root: Path) -> tuple[Path, int]:
    """A new directory below `root` and the lock that shows that its owner lives."""
    while True:
        live = Path(tempfile.mkdtemp(prefix=_LIVE, dir=root))
        lock = -1
        # A sweep may come between the directory and the lock, and then wins.
        with suppress(FileNotFoundError, BlockingIOError):
            lock = os.open(live / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if (live / _LOCK).exists():
                return live, lock
        if lock >= 0:
            os.close(lock)


def _fill(workspace: Workspace, owner: int | None, files: Mapping[str, str]) -> None:
    workspace.path.mkdir(0o700)
    if owner is not None:
        try:
            os.chown(workspace.path, owner, owner)
        except OSError as error:
            raise SandboxUnavailable(
                f"{workspace.path.parent.parent}: root cannot give files to another user there ({error.strerror}); "
                "put the workspaces on a local disk"
            ) from None
    for path, text in files.items():
        workspace.write(path, text.encode())


def _keep(workspace: Path, kept: Path) -> None:
    kept.parent.mkdir(exist_ok=True)
    remove_tree(str(kept))
    workspace.rename(kept)


def _check_initial_path(path: str) -> None:
    try:
        relative = not path.startswith("/") and split_path(path)
    except FileProblem as problem:
        raise ValueError(f"workspace file {problem}") from None
    if not relative or "\0" in path:
        raise ValueError(f"workspace file {path!r}: must be a relative path of a file")


def _directory_name(key: str) -> str:
    name = quote(key, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"
    if not 0 < len(name) <= 255:
        raise ValueError(f"session key {key!r:.80}: must have 1 to 255 characters once quoted for a directory's name")
    return name


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()))


def _process_result(
    process: SandboxProcess, deadline_seconds: float, seconds: float, queue_seconds: float
) -> ToolResult:
    text, code = process.output.text(), process.exit_code
    status: Status = "ok" if code == 0 else "error"
    if process.timed_out and code is None:
        status = "timeout"
        text = f"{text.rstrip()}\n[killed at the deadline of {deadline_seconds:g} s]".lstrip()
    elif code is None:
        status = "crashed"
        text = text or "the sandbox ended without a word"
    return ToolResult(status, text, seconds, queue_seconds, code, process.output.truncated, process.output.total_bytes)


_SEARCH_SOURCE = Path(search_program.__file__).read_text(encoding="utf-8")
