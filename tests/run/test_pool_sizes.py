"""What hosts are told of pools whose size a restart has changed. The controller runs without Ray here."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from concur_batch.control.controller import Controller, ControllerConfig
from concur_batch.control.gauges import Answers
from concur_batch.engine.pools import PoolAddress
from concur_batch.engine.protocol import Reading
from concur_batch.workload.schema import NoControl


class Host:
    """A handle of one, that keeps what it is told."""

    def __init__(self) -> None:
        self.sizes: list[tuple[str, int]] = []
        self.resize_pool = SimpleNamespace(remote=lambda pool, tokens: self.sizes.append((pool, tokens)))
        self.permit = SimpleNamespace(remote=lambda incarnation, permits: None)


async def test_every_host_learns_a_new_size_once_and_one_that_comes_late_as_well() -> None:
    recorder: Any = SimpleNamespace(commit=SimpleNamespace(remote=lambda lines: asyncio.sleep(0)))
    pools = tuple(PoolAddress(name, "http://127.0.0.1:9", None, None, 1, 2500) for name in "pq")
    control = NoControl(policy="none")
    controller = Controller(ControllerConfig("run", 0.0, pools, control, agents=4, hosts=1), recorder)
    first, late = Host(), Host()
    await controller.introduce("first", first, [], await controller.incarnation())
    for at_seconds, tokens in ((1.0, 2500), (2.0, 900), (3.0, 900)):
        readings = {"p": Reading(at_seconds, pool_tokens=tokens), "q": Reading(at_seconds, pool_tokens=2500)}
        controller._period([Answers(readings, frozenset())])
    await controller.introduce("late", late, [], await controller.incarnation())
    assert (first.sizes, late.sizes) == ([("p", 900)], [("p", 900)])
    await controller.close()
