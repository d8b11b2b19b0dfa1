"""What the tests of the tools share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools_env.sandbox import SandboxSession
from tools_env.spec import ToolResult

Call = Callable[..., Any]


class Agent:
    """A session, with tools as methods: `await agent.bash(command="...")`."""

    def __init__(self, session: SandboxSession) -> None:
        self.session = session
        self.workspace = session.workspace

    def __getattr__(self, tool: str) -> Call:
        async def call(**arguments: Any) -> ToolResult:
            return await self.session.call(tool, arguments)

        return call


def host_processes(marker: str) -> list[int]:
    """The host's processes, apart from zombies, with `marker` in their command line."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if marker.encode() in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
            except OSError:
                pass
    return found


async def begun(agent: Agent) -> None:
    """Waits until a call has made the file `begun`."""
    for _ in range(2000):
        if (agent.workspace / "begun").exists():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the call never began")
