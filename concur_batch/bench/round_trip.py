"""Decisions through Ray: the controller actor under the loads of thousands of agents on several host actors."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from concur_batch.bench.metered import CrowdHost, HostAccount, Load, MeteredController, Sink
from concur_batch.control.controller import ControllerConfig
from concur_batch.engine.pools import PoolAddress
from concur_batch.workload.schema import AgentCap

_POOL_TOKENS = 64_000_000  # the size of `engine_server`'s
_STORE_BYTES = 128 * 1024**2  # of Ray's object store, which nothing large passes through
# Until all hosts have their agents' coroutines, and until a changed cap is in force, which takes a control period.
_START_SECONDS = 1.5
_PERIOD_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Trip:
    """A load and what it took. `cpu_seconds` are the controller process's. `vacant_seconds`: how long places that were
    given back stood empty while agents waited, one value each. `queue`: (seconds since the start, agents without a
    permit, events that hosts hold or have under way), four times a second."""

    load: Load
    seconds: float
    cpu_seconds: float
    report_seconds: list[float]
    vacant_seconds: list[float]
    queue: list[tuple[float, int, int]]


def measure_trips(loads: Sequence[Load], hosts: int, url: str) -> list[Trip]:
    """All loads, one after the other, against the engine at `url`, on a Ray of our own."""
    ray.init(
        logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False, object_store_memory=_STORE_BYTES
    )
    try:
        return asyncio.run(_measure(loads, hosts, url))
    finally:
        ray.shutdown()


async def _measure(loads: Sequence[Load], count: int, url: str) -> list[Trip]:
    config = ControllerConfig(
        run="bench-control",
        started_at=time.time(),
        pools=(PoolAddress("0", url, None, None, 1, _POOL_TOKENS),),
        control=AgentCap(policy="agent_cap", cap=1, period_seconds=_PERIOD_SECONDS),
        agents=sum(load.agents for load in loads),
        hosts=count,
    )
    controller = _actor(MeteredController, config, _actor(Sink))
    hosts = [_actor(CrowdHost, f"host{number}", controller) for number in range(count)]
    await asyncio.gather(*(host.open.remote() for host in hosts))
    return [await _run(load, controller, hosts) for load in loads]


async def _run(load: Load, controller: Any, hosts: Sequence[Any]) -> Trip:
    await controller.set.remote([f"control.cap={load.cap}"])
    before = await controller.meter.remote()
    start = time.monotonic() + 2 * _PERIOD_SECONDS + _START_SECONDS
    shares = [range(number, load.agents, len(hosts)) for number in range(len(hosts))]
    runs = [host.run.remote(load, share, start) for host, share in zip(hosts, shares, strict=True)]
    accounts: list[HostAccount] = await asyncio.gather(*runs)
    after = await controller.meter.remote()
    freed = sorted(moment for account in accounts for moment in account.freed_seconds)
    granted = sorted(moment for account in accounts for moment in account.granted_seconds)
    return Trip(
        load,
        seconds=granted[-1] - start,
        cpu_seconds=after["cpu_seconds"] - before["cpu_seconds"],
        report_seconds=[seconds for account in accounts for seconds in account.report_seconds],
        # Places go to those who wait one for one, so the i-th that was freed is the (cap + i)-th that was granted.
        vacant_seconds=[grant - free for free, grant in zip(freed, granted[load.cap :], strict=False)],
        queue=queue_length(accounts, start),
    )


def queue_length(accounts: Sequence[HostAccount], start: float) -> list[tuple[float, int, int]]:
    """The hosts' samples since `start` added up, by quarters of a second: of each host and quarter, the largest."""
    largest: dict[float, dict[int, tuple[int, int]]] = defaultdict(dict)
    for host, account in enumerate(accounts):
        for moment, waiting, unsent in account.samples:
            at = (moment - start) // 0.25 * 0.25
            most = largest[at].get(host, (0, 0))
            largest[at][host] = max(most[0], waiting), max(most[1], unsent)
    return [
        (at, sum(waiting for waiting, _ in found.values()), sum(unsent for _, unsent in found.values()))
        for at, found in sorted(largest.items())
        if at >= 0
    ]


def _actor(cls: type, *arguments: Any) -> Any:
    return ray.remote(cls).options(num_cpus=0).remote(*arguments)
