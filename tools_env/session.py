"""One agent's tools: from a call's arguments to its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools_env import search_program
from tools_env.bubblewrap import WORKSPACE
from tools_env.file_tools import FILE_TOOLS, run_file_tool
from tools_env.output import BoundedOutput
from tools_env.process import SandboxProcess
from tools_env.runner import SandboxRunner
from tools_env.snapshots import Snapshots
from tools_env.spec import Status, ToolResult, ToolSpec, argument_error
from tools_env.workspace import FileProblem, Workspace, split_path

_COMMAND_BYTES = 128 * 1024 - 1  # Linux: MAX_ARG_STRLEN, less the closing NUL
_SEARCH_SOURCE = Path(search_program.__file__).read_text(encoding="utf-8")


class SandboxSession:
    """One agent's workspace and tools. Calls may run side by side."""

    def __init__(
        self,
        runner: SandboxRunner,
        files: Workspace,
        specs: Sequence[ToolSpec],
        deadline_seconds: float,
        output_limit_bytes: int,
        on_close: Callable[[bool], Awaitable[Path | None]],
    ) -> None:
        self._runner = runner
        self._files = files
        self._path = files.path
        self._specs = {spec.name: spec for spec in specs}
        self._deadline_seconds = deadline_seconds
        self._output_limit_bytes = output_limit_bytes
        self._on_close = on_close
        self._running: set[SandboxProcess] = set()
        self.snapshots: Snapshots | None = None  # once the workspace is filled
        self._closed = False

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
        if spec.has_effects and self.snapshots is not None:
            self.snapshots.touch()
        if name in FILE_TOOLS:
            return await self._call_file_tool(name, arguments)
        try:
            command = self._command(name, arguments)
        except FileProblem as problem:
            return self._result("error", str(problem))
        return await self._run(command, self._deadline_seconds, WORKSPACE)

    async def run_command(self, command: str, deadline_seconds: float) -> ToolResult:
        """Runs a bash command of the operator's, not the agent's: HOME is outside of the workspace, so that nothing the
        agent left in its home (start-up files, Python's user site) is loaded.

        Raises:
            RuntimeError: the session is closed.
        """
        self._check_open()
        return await self._run(["/bin/bash", "-c", "--", command], deadline_seconds, "/tmp")

    async def put_files(self, files: Mapping[str, str]) -> None:
        """Ends what still runs in the session and writes files, whatever the agent has put in their way.

        Raises:
            ValueError: a path leads out of the workspace.
            RuntimeError: the session is closed.
        """
        self._check_open()
        for path in files:
            check_file_path(path)
        await self.stop_running()
        self._path.chmod(0o700)
        for path, text in files.items():
            await asyncio.to_thread(self._files.force, path, text.encode())

    async def stop_running(self) -> None:
        """Kills every running call, and returns when all its processes are dead."""
        running = list(self._running)
        for process in running:
            process.kill()
        for process in running:
            await process.wait()

    async def save(self, recorded: str) -> str:
        """A snapshot of the workspace, where anything in it has changed since the last one. Nothing else is of the
        session: /tmp and processes end with their call."""
        assert self.snapshots is not None, "it is open"
        return await asyncio.to_thread(self.snapshots.save, recorded)

    async def close(self, keep: bool = False) -> None:
        """Ends what runs and removes the workspace, or moves it to `kept/` in the root. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        await self.stop_running()
        self._path = await self._on_close(keep) or self._path

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the session of {self._path} is closed")

    def _command(self, name: str, arguments: dict[str, Any]) -> list[str]:
        python = self._runner.bubblewrap.python
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

    async def _run(self, command: Sequence[str], deadline_seconds: float, home: str) -> ToolResult:
        queued = started = time.monotonic()
        try:
            async with self._runner.place() as place:
                started = time.monotonic()
                if self._closed:
                    return ToolResult("crashed", "the session was closed", queue_seconds=started - queued)
                process = self._runner.start(place, self._path, command, home, deadline_seconds)
                self._running.add(process)
                try:
                    await process.wait()
                finally:
                    self._running.discard(process)
                seconds = time.monotonic() - started
        except OSError as error:
            message = f"the sandbox could not be started: {error.strerror or error}"
            return ToolResult("crashed", message, queue_seconds=started - queued)
        return _process_result(process, deadline_seconds, seconds, started - queued)

    async def _call_file_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        started = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline_seconds):
                done, output = await asyncio.to_thread(run_file_tool, self._files, name, arguments)
        except TimeoutError:
            return self._result("timeout", f"{name} took too long", time.monotonic() - started)
        except OSError as error:
            return self._result("crashed", f"{name}: {error.strerror or error}", time.monotonic() - started)
        kept = BoundedOutput(self._output_limit_bytes)
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


def check_file_path(path: str) -> None:
    """Checks the path of a file that the operator puts into a workspace.

    Raises:
        ValueError: it is not a relative path inside.
    """
    try:
        relative = not path.startswith("/") and split_path(path)
    except FileProblem as problem:
        raise ValueError(f"workspace file {problem}") from None
    if not relative or "\0" in path:
        raise ValueError(f"workspace file {path!r}: must be a relative path of a file")


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
