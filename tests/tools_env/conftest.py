from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.tools_env.support import Agent
from tools_env.catalogue import CATALOGUE
from tools_env.sandbox import SandboxEnvironment


@pytest.fixture
async def environment(tmp_path: Path) -> AsyncIterator[SandboxEnvironment]:
    made = SandboxEnvironment(tmp_path / "root", list(CATALOGUE), deadline_seconds=20)
    yield made
    await made.close()


@pytest.fixture
async def agent(environment: SandboxEnvironment) -> Agent:
    return Agent(await environment.open("agent", {"notes.txt": "one\ntwo\nthree\n"}))
