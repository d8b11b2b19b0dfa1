"""A Ray actor that runs hundreds to thousands of agents as coroutines.

Agents are not Ray calls: Ray's limit of concurrent calls to an async actor does not bound them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ray.exceptions import ActorDiedError, RayError

from concur_batch.agent.beginning import Beginning
from concur_batch.agent.config import HostConfig
from concur_batch.agent.gate import Draining
from concur_batch.agent.link import Link
from concur_batch.agent.recall import RecordedTurn, recorded_turns
from concur_batch.agent.rollout import Rollout
from concur_batch.agent.services import Pool, Services
from concur_batch.agent.spec import AgentSpec
from concur_batch.agent.tally import Tally
from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.agent.turnstile import Turnstile
from concur_batch.control.member import Permit
from concur_batch.engine.clients import connect
from concur_batch.trace.encode import encode
from concur_batch.trace.intents import Intents
from concur_batch.trace.outbox import Outbox
from concur_batch.trace.reading import Run
from concur_batch.workload.schema import SyntheticTools
from tools_env.sandbox import SANDBOXES_PER_CORE, SandboxEnvironment
from tools_env.spec import ToolEnvironment
from tools_env.synthetic import SyntheticEnvironment

_LAG_PROBE_SECONDS = 0.05
_LAST_ROWS_SECONDS = 5.0
# Between two attempts of an agent, at most.
_MOST_WAIT_SECONDS = 30.0


class AgentHost:
    """`controller` and `recorder` are Ray actor handles, or anything with the same methods' `.remote`."""

    def __init__(self, config: HostConfig, controller: Any, recorder: Any) -> None:
        self._config = config
        self._controller = controller
        self._recorder = recorder
        self._tokenizer = load_tokenizer(config.tokenizer_directory, datetime.fromtimestamp(config.started_at, UTC))
        self._tools = make_tools(config)
        offset = time.monotonic() - (time.time() - config.zero_at)
        self._clock: Callable[[], float] = lambda: time.monotonic() - offset
        # One thread, that gives way: several would take the cores from the event loops.
        self._encoder = ThreadPoolExecutor(1, "encoder", initializer=_give_way)
        self._running: dict[str, Rollout] = {}
        self._totals: dict[str, float] = {}
        self._endings: dict[str, int] = {}
        self._rewards: list[float] = []
        self._lags_seconds: list[float] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._addresses = {pool.name: pool.url for pool in config.pools}
        self._fatal: str | None = None
        self._draining = asyncio.Event()

    async def open(self) -> None:
        """Connect to the engine and start reporting."""
        config = self._config
        self._engines = {
            pool.url: connect(pool.kind, pool.url, config.request_seconds, config.retries, pool.api_key, pool.model)
            for pool in config.pools
        }
        self._records: Outbox[bytes] = Outbox(self._commit)
        self._intents = Intents(config.directory, config.name, config.life, self._records.is_sent)
        self._link = Link(config.name, self._controller, config.rules)
        self._pools = {
            pool.name: Pool(self._engines[pool.url], pool.dp_rank, pool.page_size, pool.tokens) for pool in config.pools
        }
        self._services = Services(
            config=config,
            pools=self._pools,
            spend=self._link.spend,
            tools=self._tools,
            specs=self._tools.specs(),
            tokenizer=self._tokenizer,
            encoder=self._encoder,
            turnstile=Turnstile(),
            beginning=Beginning(),
            gate=self._link.gate,
            records=self._records,
            intents=self._intents,
            clock=self._clock,
        )
        self._background = [asyncio.create_task(self._link.keep_beating()), asyncio.create_task(self._probe_lag())]
        favour_event_loop()

    async def run(self, specs: Sequence[AgentSpec]) -> None:
        """Run these agents to their ends, with all of it recorded. Several calls may be under way. Raises TraceError
        where the turns of those that go on cannot be read."""
        recorded = await asyncio.to_thread(self._recorded, [spec for spec in specs if spec.goes_on])
        tasks = [asyncio.create_task(self._run_agent(spec, recorded.pop(spec.agent_id, ()))) for spec in specs]
        self._tasks |= {spec.agent_id: task for spec, task in zip(specs, tasks, strict=True)}
        await asyncio.gather(*tasks)
        await self._records.sent()
        await self._link.sent()
        with contextlib.suppress(RayError):  # a controller that restarts has lost what it counted anyway
            await self._link.beat()

    async def permit(self, incarnation: int, permits: list[Permit]) -> None:
        """Take the controller's permits; those of one that has died since are void."""
        self._link.permit(incarnation, permits)

    async def hang_up(self, pool: str) -> None:
        """A pool has not answered for long: its requests would wait for an answer that never comes."""
        await self._engines[self._addresses[pool]].hang_up()

    async def resize_pool(self, pool: str, tokens: int) -> None:
        """A pool has another size than before: its engine was restarted."""
        self._pools[pool].tokens = tokens

    async def cancel(self, agent_id: str) -> bool:
        """End an agent now, with status `cancelled`; whether it was there and running."""
        rollout, task = self._running.get(agent_id), self._tasks.get(agent_id)
        return rollout is not None and task is not None and rollout.cancel(task)

    async def agents(self) -> list[dict[str, Any]]:
        """The agents that have not ended: what each does, since when, and how far it is."""
        return [rollout.standing() for rollout in self._running.values()]

    async def drain(self) -> None:
        """Start no further turn; agents end after the turn they are in, with all of it recorded."""
        self._draining.set()
        self._link.gate.drain()

    async def status(self) -> dict[str, Any]:
        """Sums over all agents so far, running ones included, for live views and the summary."""
        sums = dict(self._totals)
        for rollout in self._running.values():
            for name in Tally.__slots__:
                sums[name] = sums.get(name, 0) + (getattr(rollout.tally, name) or 0)
        lags = sorted(self._lags_seconds)
        return {
            "sums": sums,
            "endings": dict(self._endings),
            "rewards": (len(self._rewards), sum(self._rewards)),
            "loop_lag_p99_seconds": lags[int(len(lags) * 0.99)] if lags else 0.0,
            "recorder_error": self._obstacle(),
            "fatal": self._fatal,
        }

    async def close(self) -> None:
        """Stop what still runs, with the turns that have ended recorded, and let go of engine and tools."""
        running = [*self._tasks.values(), *self._background]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        with contextlib.suppress(TimeoutError):  # a recorder that cannot take them
            await asyncio.wait_for(self._records.sent(), _LAST_ROWS_SECONDS)
        await self._link.close()
        await self._records.close()
        await self._intents.close()
        for engine in self._engines.values():
            await engine.close()
        await self._tools.close()
        self._encoder.shutdown(wait=False)

    def _recorded(self, specs: Sequence[AgentSpec]) -> dict[str, Sequence[RecordedTurn]]:
        return {**recorded_turns(Run(self._config.directory), specs)} if specs else {}

    def _obstacle(self) -> str | None:
        """Why rows wait to be recorded, calls to begin, or turns to be handed over."""
        error = self._records.last_error or self._intents.last_error
        if error is not None:
            return str(error)
        return next(iter(self._services.troubles.values()), None)

    async def _run_agent(self, spec: AgentSpec, recorded: Sequence[RecordedTurn]) -> None:
        """All attempts of one agent. If the run is stopped before its end, it has no final row."""
        try:
            await self._attempts(spec, recorded)
        finally:
            del self._tasks[spec.agent_id]

    async def _attempts(self, spec: AgentSpec, recorded: Sequence[RecordedTurn]) -> None:
        left = max(1, self._config.attempts - spec.attempts_before)
        for number in range(left):
            rollout = Rollout(replace(spec, attempt=spec.attempt + number), self._services, recorded)
            recorded = ()
            self._running[spec.agent_id] = rollout
            try:
                ending, row = await rollout.run()
            except Draining:
                self._count(rollout)
                return
            final = number + 1 == left or ending.failure_class != "infrastructure"
            if not final and self._link.gate.draining:
                self._count(rollout)
                return
            record = self._records.put(encode("agents", {**row, "final": final}))
            self._count(rollout)
            if final:
                key = ending.failure_class if ending.status == "failed" else ending.status
                self._endings[str(key)] = self._endings.get(str(key), 0) + 1
                if row.get("reward") is not None:
                    self._rewards.append(row["reward"])
            await self._records.sent(record)
            if final:
                with contextlib.suppress(OSError):  # what stays behind is swept at the run's end
                    await self._tools.forget(spec.agent_id)
                return
            with contextlib.suppress(TimeoutError):  # a run that is being stopped does not wait for another attempt
                async with asyncio.timeout(retry_wait_seconds(spec.attempts_before + number + 1)):
                    await self._draining.wait()

    def _count(self, rollout: Rollout) -> None:
        self._running.pop(rollout.spec.agent_id, None)
        for name in Tally.__slots__:
            self._totals[name] = self._totals.get(name, 0) + (getattr(rollout.tally, name) or 0)

    async def _commit(self, lines: list[bytes]) -> None:
        try:
            await self._recorder.commit.remote(b"".join(lines), self._config.name)
        except ActorDiedError as error:  # for good: one that restarts is only unavailable
            self._fatal = f"the recorder is gone: {error}"
            raise

    async def _probe_lag(self) -> None:
        """How late the event loop wakes a sleeper: above 100 ms, tool results and grants are handled late."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_LAG_PROBE_SECONDS)
            self._lags_seconds.append(time.monotonic() - began - _LAG_PROBE_SECONDS)
            if len(self._lags_seconds) > 20_000:
                del self._lags_seconds[:10_000]


def retry_wait_seconds(failed: int) -> float:
    """How long an agent waits after so many attempts that infrastructure failed: about 1, 2, 4 … 30 s, and not all
    that one outage has failed alike."""
    return random.uniform(0.5, 1.0) * min(_MOST_WAIT_SECONDS, 2.0 ** min(failed - 1, 10))


def make_tools(config: HostConfig) -> ToolEnvironment:
    """The tool environment that the workload names."""
    tools = config.tools
    if isinstance(tools, SyntheticTools):
        return SyntheticEnvironment(tools.wait_seconds, tools.observation_words, config.seed)
    return SandboxEnvironment(
        config.workspaces,
        list(tools.names),
        deadline_seconds=tools.deadline_seconds,
        output_limit_bytes=tools.output_limit_bytes,
        memory_limit_bytes=tools.memory_limit_bytes,
        process_limit=tools.process_limit,
        max_running=max(1, (tools.max_running or SANDBOXES_PER_CORE * (os.cpu_count() or 1)) // config.hosts_on_node),
    )


def favour_event_loop() -> None:
    """Set this process up for one event loop with thousands of agents, beside which other threads compute."""
    # Thousands of living coroutines make full collections slow, and there is next to nothing cyclic to collect.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    # After each system call the loop waits so long for a thread that computes; by default 5 ms, some hundred times a
    # turn of the loop.
    sys.setswitchinterval(1e-4)


def _give_way() -> None:
    """Lower the priority of the calling thread; on Linux, niceness is a thread's own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
