"""The Ray actor around the governor: reads the engine's signals each period, pushes permits to the hosts, records."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from concur_batch.control.gauges import PATIENCE_SECONDS, Answers, Gauges
from concur_batch.control.governor import Governor
from concur_batch.control.member import Beat, Event, Membership, Permit, Spent, State
from concur_batch.control.orders import Orders, read_orders, write_orders
from concur_batch.control.overview import overview
from concur_batch.engine.pools import PoolAddress
from concur_batch.engine.protocol import Reading
from concur_batch.trace.encode import encode
from concur_batch.trace.outbox import Outbox
from concur_batch.workload.change import changed, differences
from concur_batch.workload.schema import AnyControl

# How long a restarted controller waits for hosts that do not come back.
_INTRODUCTION_SECONDS = 10.0
# A host that takes longer to answer hangs, or is gone and not yet known to be.
_HOST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Plain data; `hosts` is how many hosts must have introduced themselves before anything is granted.

    `orders` is the file that keeps what the operator orders; without one, a restart forgets it.
    """

    run: str
    started_at: float
    pools: tuple[PoolAddress, ...]
    control: AnyControl
    agents: int
    hosts: int
    orders: Path | None = None


class Controller:
    """Asked once by an agent that holds no grant; an admitted agent's turns pass it by.

    `recorder` is the recorder actor's name: Ray cannot promise a restart to an actor that was made with a handle.
    """

    def __init__(self, config: ControllerConfig, recorder: Any) -> None:
        self._config = config
        self._recorder = _named_actor(recorder) if isinstance(recorder, str) else recorder
        # Nobody is granted anything before the hosts have told what they hold: this may be a restart.
        kept = read_orders(config.orders) if config.orders is not None else None
        orders = kept or Orders(config.control)
        self._governor = Governor(orders.control, [pool.name for pool in config.pools], config.agents)
        self._governor.admission.suspended = orders.suspended
        for pool in config.pools:
            self._governor.admission.windows[pool.name].pool_tokens = pool.tokens
        if ordered := orders.since(config.control):
            self._governor.note(f"after a restart of the controller: {', '.join(ordered)}")
        self._hosts: dict[str, Any] = {}
        self._host_of: dict[str, str] = {}
        self._pool_tokens = {pool.name: pool.tokens for pool in config.pools}
        self._offset = time.monotonic() - (time.time() - config.started_at)
        self._incarnation = time.time_ns()
        self._gone: set[str] = set()
        self._loop: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    async def open(self) -> None:
        """Start the control loop. Nobody is granted anything before the engine's counters have been read once, so that
        the first period counts all that the agents caused."""
        if self._loop is None:
            self._gauges = Gauges(self._config.pools, self._offset)
            self._records: Outbox[bytes] = Outbox(self._commit)
            self._priming = asyncio.create_task(self._prime())
            self._loop = asyncio.create_task(self._control())
        await self._priming

    async def incarnation(self) -> int:
        """Which controller this is, of those that Ray has started one after the other."""
        return self._incarnation

    async def introduce(self, host: str, handle: Any, census: list[Membership], incarnation: int) -> None:
        """A host makes itself known, with all its agents; grants begin once every host has, or after a while.

        Void unless the host takes this incarnation's permits: those of one before, which may still be on their way, are
        in no census.
        """
        if incarnation != self._incarnation:
            return
        await self.open()
        self._hosts[host] = handle
        for pool in self._config.pools:  # it knows the sizes as they were when the run began
            if (tokens := self._pool_tokens[pool.name]) is not None and tokens != pool.tokens:
                handle.resize_pool.remote(pool.name, tokens)
        for entry in census:
            self._host_of[entry.agent] = host
        self._push(self._governor.admission.restore(census, self._now()))
        if len(self._hosts) >= self._config.hosts:
            self._begin()

    async def report(self, host: str, events: list[Event]) -> bool:
        """Events of a host's agents, in order. False: this controller does not know the host yet."""
        if host not in self._hosts:
            return False
        permits: list[Permit] = []
        for event in events:
            if event.kind == "arrive":
                self._host_of[event.agent] = host
            permits += self._governor.admission.take(event, self._now())
            if event.kind == "release":
                self._host_of.pop(event.agent, None)
        self._push(permits)
        return True

    async def beat(self, host: str, beats: list[Beat], spent: Mapping[str, Spent]) -> bool:
        """What agents with a place do, and what the turns that ended have spent, by pool."""
        for pool, tokens in spent.items():
            self._governor.spent(pool, tokens)
        if host not in self._hosts:
            return False
        self._governor.admission.beat(beats, self._now())
        return True

    async def lost(self, host: str) -> None:
        """A host is gone: its agents' places are free."""
        self._hosts.pop(host, None)
        agents = [agent for agent, owner in self._host_of.items() if owner == host]
        for agent in agents:
            del self._host_of[agent]
        self._push(self._governor.admission.release(agents, self._now()))

    async def set(self, settings: Sequence[str]) -> list[str]:
        """Change settings, given as `control.u_high=0.6`; what changed, a line each. Raises InputError, or TraceError
        where the change cannot be kept: it is not made then."""
        before = self._governor.control
        after = changed(before, settings)
        lines = differences(before, after)
        if lines:
            await self._keep(Orders(after, self._governor.admission.suspended))
            self._governor.change(after)
            self._governor.note("; ".join(lines))
        return lines

    async def suspend(self, suspended: bool) -> bool:
        """Pause every agent at its next boundary, or let them go on; False where it was so already. Raises TraceError
        where that cannot be kept: nothing changes then."""
        if suspended is self._governor.admission.suspended:
            return False
        await self._keep(Orders(self._governor.control, suspended))
        self._governor.note("paused" if suspended else "resumed")
        self._push(self._governor.admission.suspend(suspended, self._now()))
        return True

    async def cancel(self, agent_id: str) -> bool:
        """End an agent now, with status `cancelled`; False where no host runs it, or it is at its end already."""
        found = any((await self._ask("cancel", agent_id)).values())
        if found:
            self._governor.note(f"cancelled {agent_id}")
        return found

    async def picture(self) -> dict[str, Any]:
        """The run as it is now: `seconds` since its start, `control` (see `status`), all `agents` that have not ended,
        as their hosts see them, and the `silent_hosts`, whose agents are missing."""
        answers = await self._ask("agents")
        return {
            "seconds": self._now(),
            "control": await self.status(),
            "agents": [agent for agents in answers.values() for agent in agents or ()],
            "silent_hosts": [host for host, agents in answers.items() if agents is None],
        }

    async def status(self) -> dict[str, Any]:
        """The windows as they are now, summed up, with the last rows of all pools; `problem` is what ended the control
        loop, if anything did."""
        ended = self._loop is not None and self._loop.done() and not self._loop.cancelled()
        admission = self._governor.admission
        counts = admission.counts()
        windows = admission.windows.values()
        capacities = [window.capacity for window in windows]
        rooms = [window.room.admit_tokens for window in windows if window.room is not None]
        return {
            **overview(list(self._governor.last_rows.values())),
            "window": None if None in capacities else sum(capacity or 0 for capacity in capacities),
            "window_tokens": sum(rooms) if len(rooms) == len(windows) else None,
            "footprint_tokens": sum(window.footprint_tokens for window in windows),
            "pools": self._governor.last_rows,
            "silent_pools": self._governor.silent(),
            "drifts": self._governor.drifts(),
            "suspended": admission.suspended,
            "problem": repr(self._loop.exception()) if ended and self._loop is not None else None,
            "places_held": admission.places_held,
            "waiting": admission.waiting,
            **{state.value: counts[state] for state in State},
        }

    async def close(self) -> None:
        """End the control loop with a last period, so that the run's end is on record."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
            if self._governor.admission.granting:
                self._period([await self._read()])
            await self._records.sent()
            await self._records.close()
            await self._gauges.close()

    async def _keep(self, orders: Orders) -> None:
        if self._config.orders is not None:
            await asyncio.to_thread(write_orders, self._config.orders, orders)

    async def _ask(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Every host's answer, None for one that gives none."""
        await self._begun.wait()  # after a restart, until the hosts are known

        async def answer(host: Any) -> Any:
            try:
                async with asyncio.timeout(_HOST_SECONDS):
                    return await getattr(host, method).remote(*arguments)
            except Exception:  # whatever Ray says of an actor that dies, or that hangs
                return None

        hosts = dict(self._hosts)
        return dict(zip(hosts, await asyncio.gather(*map(answer, hosts.values())), strict=True))

    def _now(self) -> float:
        return time.monotonic() - self._offset

    def _begin(self) -> None:
        if not self._governor.admission.granting:
            self._push(self._governor.begin(self._now()))
            self._begun.set()

    def _push(self, permits: Sequence[Permit]) -> None:
        by_host: dict[str, list[Permit]] = defaultdict(list)
        for permit in permits:
            by_host[self._host_of.get(permit.agent, "")].append(permit)
        for host, batch in by_host.items():
            if host in self._hosts:
                self._hosts[host].permit.remote(self._incarnation, batch)

    async def _prime(self) -> None:
        self._governor.prime((await self._read()).readings, self._now())

    async def _control(self) -> None:
        opened = next_seconds = time.monotonic()
        while True:
            count = self._governor.readings_per_period
            answers = []
            for _ in range(count):
                next_seconds = max(next_seconds + self._governor.control.period_seconds / count, time.monotonic())
                await asyncio.sleep(next_seconds - time.monotonic())
                answers.append(await self._read(self._governor.control.period_seconds / count))
            if time.monotonic() - opened > _INTRODUCTION_SECONDS:
                self._begin()
            if self._governor.admission.granting:
                self._period(answers)

    async def _commit(self, lines: list[bytes]) -> None:
        await self._recorder.commit.remote(b"".join(lines))

    async def _read(self, within_seconds: float = PATIENCE_SECONDS) -> Answers:
        windows = self._governor.admission.windows
        return await self._gauges.read([name for name, window in windows.items() if window.closed], within_seconds)

    def _period(self, answers: Sequence[Answers]) -> None:
        """One control period: samples, verdicts, permits, record."""
        readings: dict[str, list[Reading]] = defaultdict(list)
        for answer in answers:
            for pool, reading in answer.readings.items():
                readings[pool].append(reading)
        late = frozenset.intersection(*(answer.late for answer in answers))  # in the others the question has failed
        permits, rows = self._governor.period(readings, self._now(), late)
        self._push(permits)
        for row in rows:
            self._records.put(encode("control", row))
            pool, tokens = row["pool"], row["pool_tokens"]
            if tokens is not None and tokens != self._pool_tokens[pool]:
                self._pool_tokens[pool] = tokens
                for host in self._hosts.values():
                    host.resize_pool.remote(pool, tokens)
        gone = {names[0] for names in self._gauges.replicas(self._governor.silent())}
        for pool in gone - self._gone:
            for host in self._hosts.values():
                host.hang_up.remote(pool)
        self._gone = gone


def _named_actor(name: str) -> Any:
    import ray

    return ray.get_actor(name)
