"""The Ray actor that owns the window: reads the engine's signals each period, decides, pushes permits to the hosts."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from concur_batch.control.policies import Policy, Verdict, make_policy
from concur_batch.control.window import Membership, Permit, State, Window
from concur_batch.engine.protocol import EngineError, Reading
from concur_batch.engine.sglang import SglangEngine
from concur_batch.engine.signals import Sample, Sampler
from concur_batch.report.phases import PhaseTracker
from concur_batch.trace.encode import encode
from concur_batch.trace.outbox import Outbox
from concur_batch.workload.schema import AgentCap, Concur, NoControl, RequestCap

# So many readings in a row must fail before the engine counts as silent.
_SILENT_PERIODS = 3
# How long a restarted controller waits for hosts that do not come back.
_INTRODUCTION_SECONDS = 10.0
# With `smoothing: mean`, U is the mean of so many readings of a period.
_READINGS_PER_PERIOD = 4


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Plain data; `hosts` is how many hosts must have introduced themselves before anything is granted."""

    run: str
    started_at: float
    engine_url: str
    api_key: str | None
    control: NoControl | RequestCap | AgentCap | Concur
    agents: int
    hosts: int


class Controller:
    """Asked once by an agent that holds no grant; an admitted agent's turns pass it by.

    `recorder` is the recorder actor's name: Ray cannot promise a restart to an actor that was made with a handle.
    """

    def __init__(self, config: ControllerConfig, recorder: Any) -> None:
        self._config = config
        self._recorder = _named_actor(recorder) if isinstance(recorder, str) else recorder
        self._policy: Policy = make_policy(config.control, config.agents)
        # Nobody is granted anything before the hosts have told what they hold: this may be a restart.
        self._window = Window(None, self._policy.per_generation, granting=False)
        self._sampler = Sampler()
        self._phases = PhaseTracker()
        self._hosts: dict[str, Any] = {}
        self._host_of: dict[str, str] = {}
        self._period = 0
        self._recomputed_tokens = 0
        self._silent_periods = 0
        self._offset = time.monotonic() - (time.time() - config.started_at)
        self._last_row: dict[str, Any] = {}
        self._loop: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start the control loop."""
        if self._loop is None:
            self._engine = SglangEngine(self._config.engine_url, 10, 0, self._config.api_key)
            self._records: Outbox[bytes] = Outbox(self._commit)
            self._loop = asyncio.create_task(self._control())

    async def introduce(self, host: str, handle: Any, census: list[Membership]) -> None:
        """A host makes itself known, with all its agents; grants begin once every host has, or after a while."""
        await self.open()
        self._hosts[host] = handle
        for entry in census:
            self._host_of[entry.agent] = host
        permits = self._window.restore(census)
        self._push(permits)
        if len(self._hosts) >= self._config.hosts:
            self._grant()

    async def report(self, host: str, events: list[tuple[str, str, int]]) -> bool:
        """Events of a host's agents, in order. False: this controller does not know the host yet."""
        if host not in self._hosts:
            return False
        permits: list[Permit] = []
        for kind, agent, epoch in events:
            match kind:
                case "arrive":
                    self._host_of[agent] = host
                    permits += self._window.arrive(agent)
                case "boundary":
                    permits += self._window.reached_boundary(agent, epoch)
                case "yield":
                    permits += self._window.yield_place(agent)
                case "release":
                    permits += self._window.release(agent)
                    self._host_of.pop(agent, None)
        self._push(permits)
        return True

    async def beat(self, host: str, changes: list[tuple[str, str]], recomputed_tokens: int) -> bool:
        """Agents of a host that went from generating to tool wait or back, for the record."""
        self._recomputed_tokens += recomputed_tokens
        if host not in self._hosts:
            return False
        for agent, state in changes:
            self._window.observe(agent, State(state))
        return True

    async def lost(self, host: str) -> None:
        """A host is gone: its agents' places are free."""
        self._hosts.pop(host, None)
        agents = [agent for agent, owner in self._host_of.items() if owner == host]
        for agent in agents:
            del self._host_of[agent]
        self._push(self._window.release(*agents))

    async def status(self) -> dict[str, Any]:
        """The last control row, with the window as it is now; `problem` is what ended the control loop, if anything."""
        ended = self._loop is not None and self._loop.done() and not self._loop.cancelled()
        return {
            **self._last_row,
            "engine_silent": self._silent_periods >= _SILENT_PERIODS,
            "problem": repr(self._loop.exception()) if ended and self._loop is not None else None,
            "window": self._window.capacity,
            "places_held": self._window.places_held,
            "waiting": self._window.waiting,
            **{state.value: count for state, count in self._window.counts().items()},
        }

    async def close(self) -> None:
        """End the control loop with a last period, so that the run's end is on record."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
            if self._window.granting:
                self._step([await self._read()])
            await self._records.sent()
            await self._records.close()
            await self._engine.close()

    def _grant(self) -> None:
        """Begin to grant. After a restart the window goes on from the places that are held."""
        if not self._window.granting:
            self._push(self._window.resize(self._policy.start(self._window.places_held)))

    def _push(self, permits: list[Permit]) -> None:
        by_host: dict[str, list[Permit]] = defaultdict(list)
        for permit in permits:
            by_host[self._host_of.get(permit.agent, "")].append(permit)
        for host, batch in by_host.items():
            if host in self._hosts:
                self._hosts[host].permit.remote(batch)

    async def _control(self) -> None:
        period_seconds = self._config.control.period_seconds
        mean = isinstance(self._config.control, Concur) and self._config.control.smoothing == "mean"
        count = _READINGS_PER_PERIOD if mean else 1
        opened = next_seconds = time.monotonic()
        while True:
            readings: list[Reading | None] = []
            for _ in range(count):
                next_seconds = max(next_seconds + period_seconds / count, time.monotonic())
                await asyncio.sleep(next_seconds - time.monotonic())
                readings.append(await self._read())
            if not self._window.granting and time.monotonic() - opened > _INTRODUCTION_SECONDS:
                self._grant()
            if self._window.granting:
                self._step(readings)

    async def _commit(self, lines: list[bytes]) -> None:
        await self._recorder.commit.remote(b"".join(lines))

    async def _read(self) -> Reading | None:
        try:
            return await self._engine.read()
        except EngineError:
            return None

    def _step(self, readings: list[Reading | None]) -> None:
        """One control period: sample, verdict, permits, record."""
        sample = self._sampler.sample([reading for reading in readings if reading is not None], time.monotonic())
        self._silent_periods = 0 if sample.reading is not None else self._silent_periods + 1
        verdict = self._policy.step(self._window.capacity, sample)
        self._push(self._window.resize(verdict.after))
        self._last_row = self._row(sample, verdict)
        self._period += 1
        self._records.put(encode("control", self._last_row))

    def _row(self, sample: Sample, verdict: Verdict) -> dict[str, Any]:
        counts, moves = self._window.counts(), self._window.take_moves()
        recomputed_tokens, self._recomputed_tokens = self._recomputed_tokens, 0
        reading = sample.reading
        phase = self._phases.step(sample.occupancy, sample.hit_rate, self._window.waiting)
        return {
            "period": self._period,
            "seconds": time.monotonic() - self._offset,
            "pool": "0",
            "policy": self._config.control.policy,
            "window_before": verdict.before,
            "window_after": verdict.after,
            "branch": verdict.branch.value,
            "reason": verdict.reason,
            "usage": sample.usage,
            "hit_rate": sample.hit_rate,
            "occupancy": sample.occupancy,
            "phase": phase.value,
            "stale": sample.stale,
            "sample_age_seconds": sample.age_seconds,
            "pool_tokens": reading.pool_tokens if reading else None,
            "locked_tokens": reading.locked_tokens if reading else None,
            "evictable_tokens": reading.evictable_tokens if reading else None,
            **{name: getattr(sample, name) for name in _DELTAS},
            "running_requests": reading.running_requests if reading else None,
            "waiting_requests": reading.waiting_requests if reading else None,
            "recomputed_tokens": recomputed_tokens,
            "in_flight_requests": counts[State.ACTIVE],
            "pending": counts[State.PENDING],
            "active": counts[State.ACTIVE],
            "tool_wait": counts[State.TOOL_WAIT],
            "paused": counts[State.PAUSED],
            "queued": counts[State.QUEUED],
            "finished": counts[State.FINISHED],
            "marked": self._window.marked,
            "admitted_in_period": moves.admitted,
            "resumed_in_period": moves.resumed,
            "paused_in_period": moves.paused,
            "completed_in_period": moves.completed,
        }


_DELTAS = (
    "lookup_tokens",
    "device_hit_tokens",
    "host_hit_tokens",
    "storage_hit_tokens",
    "computed_tokens",
    "decoded_tokens",
    "evicted_tokens",
    "retractions",
    "offloaded_tokens",
    "reloaded_tokens",
)


def _named_actor(name: str) -> Any:
    import ray

    return ray.get_actor(name)
