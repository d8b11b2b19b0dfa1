"""A driver that has lost what it stands on: its last node, or a controller that had not come up yet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from concur_batch.agent.spec import AgentSpec
from concur_batch.driver.driver import Driver, RunFailed
from concur_batch.trace.manifest import write_manifest
from concur_batch.workload.loading import load

WORKLOAD = Path(__file__).parents[2] / "workloads" / "quickstart.yaml"


class Gone:
    """The recorders of a run whose only node has died."""

    settled: tuple[str, ...] = ()

    async def settle(self, host: str, given_up: asyncio.Event) -> None:
        self.settled = (*self.settled, host)

    def nodes(self) -> list[Any]:
        return []


async def lost(host: str) -> None: ...


async def test_the_last_node_s_end_is_told_in_one_line(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"run": "r"})
    agent = AgentSpec("t/0", "t", 0, 1, "Do it.")
    notes: list[str] = []
    cluster: Any = None
    driver = Driver(load(WORKLOAD).workload, "", [agent], tmp_path, cluster, lambda _: None, notes.append)
    driver._hosts = {"host0": None}
    driver._controller = SimpleNamespace(lost=SimpleNamespace(remote=lost))
    driver._recorders = Gone()  # type: ignore[assignment]
    with pytest.raises(RunFailed, match="no Ray node of the run is left"):
        await driver._replace("host0", [agent])
    assert driver._recorders.settled == ("host0",)  # type: ignore[attr-defined]
    assert notes == ["host0 died; 1 of its 1 agents go on from their last turns on another"]


async def test_a_controller_that_is_killed_while_it_starts_is_asked_again(tmp_path: Path) -> None:
    tries: list[int] = []

    async def opened() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ActorUnavailableError("it restarts", None)

    cluster: Any = None
    driver = Driver(load(WORKLOAD).workload, "", [], tmp_path, cluster, lambda _: None, lambda _: None)
    driver._controller = SimpleNamespace(open=SimpleNamespace(remote=opened))
    await driver._open_controller()
    assert len(tries) == 3
