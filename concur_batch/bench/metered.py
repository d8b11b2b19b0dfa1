"""The controller with counters, and hosts without engine and tools, to load it as the hosts of real agents do."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from concur_batch.agent.claim import Wish
from concur_batch.agent.link import Link
from concur_batch.control.controller import Controller, ControllerConfig
from concur_batch.control.member import NO_TRAITS, Beat, Event, Permit, Spent
from concur_batch.control.rules import Rules

_SAMPLE_SECONDS = 0.1


class MeteredController(Controller):
    """Counts what the hosts send; the CPU seconds of its process run from the first report. At the end, the counts
    stand in the record's last control row, as `changes`."""

    def __init__(self, config: ControllerConfig, recorder: Any) -> None:
        super().__init__(config, recorder)
        self._counts: Counter[str] = Counter()
        self._first_report: tuple[float, float] | None = None

    async def report(self, host: str, events: list[Event]) -> bool:
        """Count the call and each of its events by kind, and take them."""
        if self._first_report is None:
            self._first_report = time.monotonic(), time.process_time()
        self._counts["reports"] += 1
        self._counts.update(event.kind for event in events)
        return await super().report(host, events)

    async def beat(self, host: str, beats: list[Beat], spent: Mapping[str, Spent]) -> bool:
        """Count the call and the agents in it, and take them."""
        self._counts["beats"] += 1
        self._counts["beaten"] += len(beats)
        return await super().beat(host, beats, spent)

    async def meter(self) -> dict[str, float]:
        """The counts so far, with the `seconds` and `cpu_seconds` since the first report."""
        began, cpu_began = self._first_report or (time.monotonic(), time.process_time())
        return {**self._counts, "seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu_began}

    async def close(self) -> None:
        """Put the counts on record, and end."""
        self._governor.note(json.dumps(await self.meter()))
        await super().close()


@dataclass(frozen=True, slots=True)
class Load:
    """What the agents of all hosts do: arrive, all at once or so many a second, and then take so many turns.

    Waits are by half shorter to by half longer than said, by the agent's number, so that no two go in step.
    """

    name: str
    agents: int
    cap: int
    turns: int = 1
    generation_seconds: float = 0.0
    tool_seconds: float = 0.0
    arrivals_per_second: float | None = None


@dataclass(slots=True)
class HostAccount:
    """What a host saw. `report_seconds`: from an agent's report to its permit. `freed_seconds` and `granted_seconds`:
    moments at which agents gave their places back, and got them. `samples`: (moment, agents without a permit, events
    not yet acknowledged). Moments are on this machine's monotonic clock, which its processes share."""

    report_seconds: list[float] = field(default_factory=list)
    freed_seconds: list[float] = field(default_factory=list)
    granted_seconds: list[float] = field(default_factory=list)
    samples: list[tuple[float, int, int]] = field(default_factory=list)


class CrowdHost:
    """Agents that only wait, behind the gate and the link of a real host, which sends no beats here."""

    def __init__(self, name: str, controller: Any) -> None:
        self._name = name
        self._controller = controller
        self._account = HostAccount()
        self._asked: dict[str, float] = {}  # agents without a permit, and when they asked

    async def open(self) -> None:
        """Make the host known to the controller."""
        self._link = Link(self._name, self._controller, Rules())
        await self._link.introduce()

    async def permit(self, incarnation: int, permits: list[Permit]) -> None:
        """Take the controller's permits."""
        now = time.monotonic()
        for permit in permits:
            asked = self._asked.pop(permit.agent, None) if permit.allowed else None
            if asked is not None:
                self._account.report_seconds.append(now - asked)
                self._account.granted_seconds.append(now)
        self._link.permit(incarnation, permits)

    async def run(self, load: Load, numbers: Sequence[int], start: float) -> HostAccount:
        """Run the agents of these numbers from the monotonic moment `start` on."""
        self._account = HostAccount()
        sampler = asyncio.create_task(self._sample())
        await asyncio.gather(*(self._agent(load, number, start) for number in numbers))
        await self._link.sent()
        sampler.cancel()
        return self._account

    async def _agent(self, load: Load, number: int, start: float) -> None:
        gate, pace = self._link.gate, 0.5 + number * 7919 % 1009 / 1008
        late = 0.0 if load.arrivals_per_second is None else number / load.arrivals_per_second
        await asyncio.sleep(max(0.0, start + late - time.monotonic()))
        agent = f"{load.name}{number:06d}"
        self._asked[agent] = time.monotonic()
        for turn in range(load.turns):
            await gate.enter(agent, Wish(100 * (turn + 1), 100), NO_TRAITS)
            await asyncio.sleep(pace * load.generation_seconds)
            gate.generated(agent, 100 * (turn + 1))
            await asyncio.sleep(pace * load.tool_seconds)
        self._account.freed_seconds.append(time.monotonic())
        gate.leave(agent)

    async def _sample(self) -> None:
        while True:
            self._account.samples.append((time.monotonic(), len(self._asked), self._link.unacknowledged))
            await asyncio.sleep(_SAMPLE_SECONDS)


class Sink:
    """Stands in for a recorder."""

    async def commit(self, lines: bytes) -> None:
        """Drop the rows."""
