"""One sandboxed process from start to certain end: its limits, its output, its deadline."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tools_env.output import BoundedOutput

_READ_BYTES = 65_536
_FLOOD_BYTES = 4 << 20
_FLOOD_PAUSE_SECONDS = 0.001
_REAP_SECONDS = 10.0

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that one sandboxed process starts from.

    `options` are bubblewrap's, `userns` the descriptor of the user namespace to run in, if not a new one. `limits`
    maps resources (`resource.RLIMIT_*`) to the value that every process of the sandbox has.
    """

    binary: Path
    options: Sequence[str]
    userns: int | None
    command: Sequence[str]
    environment: Mapping[str, str]
    limits: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Spawned:
    """A started bubblewrap, its pidfd, and the read ends of its output and of its status reports."""

    popen: subprocess.Popen[bytes]
    pidfd: int
    output: int
    status: int


def spawn(launch: Launch) -> Spawned:
    """Starts bubblewrap.

    It reads its options from a pipe, for two reasons: it waits for them, so the limits can be set on it from outside
    before it does anything, without a further program or a slow fork; and no path of the host shows in the sandbox's
    process list. bubblewrap closes both pipes before the command starts.

    Raises:
        OSError: no process could be started, for instance for want of descriptors or memory.
    """
    with ExitStack() as on_failure, ExitStack() as at_end:

        def pipe() -> tuple[int, int]:
            read, write = os.pipe()
            on_failure.callback(os.close, read)
            at_end.callback(os.close, write)
            return read, write

        output_read, output_write = pipe()
        status_read, status_write = pipe()
        options_read, options_write = os.pipe()
        at_end.callback(os.close, options_read)
        at_end.callback(os.close, options_write)
        userns = [] if launch.userns is None else [launch.userns]
        arguments = ["bwrap", "--args", str(options_read), "--json-status-fd", str(status_write)]
        arguments += [f for descriptor in userns for f in ("--userns", str(descriptor))]
        popen = subprocess.Popen(
            [*arguments, "--", *launch.command],
            executable=launch.binary,
            stdin=subprocess.DEVNULL,
            stdout=output_write,
            stderr=output_write,
            pass_fds=(options_read, status_write, *userns),
            env=launch.environment,
        )
        on_failure.callback(popen.wait)
        on_failure.callback(popen.kill)
        pidfd = os.pidfd_open(popen.pid)
        on_failure.callback(os.close, pidfd)
        for limited, value in launch.limits.items():
            resource.prlimit(popen.pid, limited, (value, value))
        with suppress(BrokenPipeError):
            os.write(options_write, b"".join(os.fsencode(option) + b"\0" for option in launch.options))
        on_failure.pop_all()
    return Spawned(popen, pidfd, output_read, status_read)


def read_status(descriptor: int) -> dict[str, int]:
    """The numbers that bubblewrap has reported so far: `child-pid`, and `exit-code` once the command has ended.

    Without `exit-code` the command never ran or was killed together with its sandbox.
    """
    report: dict[str, int] = {}
    os.set_blocking(descriptor, False)
    with suppress(BlockingIOError):
        for line in os.read(descriptor, 4096).splitlines():
            report |= json.loads(line)
    return report


def adopt_orphans() -> None:
    """From now on, orphans below this process become its children (it is a subreaper), and so are ours to reap.

    Not from the start, because it concerns the whole process: the orphans of others are handed to it as well.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class SandboxProcess:
    """A running sandbox, driven by the event loop. Made by `start`, awaited by `wait`.

    After `wait` no process of the sandbox is left, whatever the command forked, ignored or wrote.
    """

    def __init__(self, spawned: Spawned, output_limit_bytes: int, deadline_seconds: float) -> None:
        self.output = BoundedOutput(output_limit_bytes)
        self.timed_out = False
        self.exit_code: int | None = None
        """The command's exit code, 128 + n if signal n ended it; None if the sandbox itself failed or was killed."""
        self._popen = spawned.popen
        self._output = spawned.output
        self._status = spawned.status
        self._report: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._pause: asyncio.TimerHandle | None = None
        self._pidfd = spawned.pidfd
        os.set_blocking(self._output, False)
        self._loop.add_reader(self._output, self._on_output)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._deadline = self._loop.call_later(deadline_seconds, self._on_deadline)

    async def wait(self) -> None:
        """Returns once everything in the sandbox is dead; if cancelled, kills it first."""
        try:
            await asyncio.shield(self._ended)
        except asyncio.CancelledError:
            self.kill()
            while not self._ended.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.shield(self._ended)
            raise

    @property
    def inner_pid(self) -> int | None:
        """The process id of the sandbox's first process, if it came up."""
        return self._report.get("child-pid")

    def kill(self) -> None:
        """Ends the sandbox: killing the first process of its pid namespace makes the kernel kill all others."""
        if self._popen.returncode is None:
            # Stopped first, so that it can neither start its child after we looked for it nor die before it: a child
            # whose parent dies during set-up would wait for it forever.
            self._popen.send_signal(signal.SIGSTOP)
            for child in _children(self._popen.pid):
                self._report["child-pid"] = child
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self._popen.kill()

    def _on_deadline(self) -> None:
        self.timed_out = True
        self.kill()

    def _on_output(self) -> None:
        if not self._read_once():
            self._loop.remove_reader(self._output)
        elif self.output.total_bytes > _FLOOD_BYTES:
            # A flood is still drained, for the tool must not block, but it may not keep the event loop busy.
            self._loop.remove_reader(self._output)
            self._pause = self._loop.call_later(_FLOOD_PAUSE_SECONDS, self._resume_output)

    def _resume_output(self) -> None:
        self._pause = None
        self._loop.add_reader(self._output, self._on_output)

    def _read_once(self) -> bool:
        """Takes one piece of output; False at its end."""
        try:
            data = os.read(self._output, _READ_BYTES)
        except BlockingIOError:
            return True
        self.output.feed(data)
        return bool(data)

    def _on_exit(self) -> None:
        """bubblewrap has ended, which it does with the command: end what the command left running as well."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._deadline.cancel()
        self._popen.wait()
        self._report |= read_status(self._status)
        try:
            inner = self._report["child-pid"]
            os.kill(inner, signal.SIGKILL)
            self._pidfd = os.pidfd_open(inner)
        except (KeyError, ProcessLookupError):
            self._finish()
            return
        except OSError:
            # It is killed but cannot be watched for want of descriptors.
            self._finish()
            return
        timer = self._loop.call_later(_REAP_SECONDS, self._on_namespace_end, None)
        self._loop.add_reader(self._pidfd, self._on_namespace_end, timer)

    def _on_namespace_end(self, timer: asyncio.TimerHandle | None) -> None:
        self._loop.remove_reader(self._pidfd)
        with suppress(ChildProcessError):  # Only ours to reap if we adopt orphans.
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        os.close(self._pidfd)
        if timer is None:
            self._report.pop("exit-code", None)
            self.output.feed(f"\na process of the sandbox outlived its kill by {_REAP_SECONDS:.0f} s\n".encode())
        else:
            timer.cancel()
        self._finish()

    def _finish(self) -> None:
        self._loop.remove_reader(self._output)
        if self._pause:
            self._pause.cancel()
        self._drain()
        os.close(self._output)
        os.close(self._status)
        self.exit_code = self._report.get("exit-code")
        self._ended.set_result(None)

    def _drain(self) -> None:
        """Takes what is still in the pipe. Its writers are dead, so this is at most one pipe's capacity."""
        with suppress(BlockingIOError):
            while data := os.read(self._output, _READ_BYTES):
                self.output.feed(data)
