"""A whole batch in virtual time: planned agents and simulated engines, under the very control code of a real run. Pure.

    agent ── event ──► Governor ── permit ──► agent ── request ──► EngineCore ── completion ──► agent
                          ▲                                            │
                          └──── beats and readings, each period ◄──────┘

Messages take no time, and the same input gives the same result.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from concur_batch.bench.agent import PlannedAgent, Row, make_agents
from concur_batch.bench.plan import EnginePlan, Plan
from concur_batch.bench.reading import make_reading
from concur_batch.control.governor import Governor, MakePolicy
from concur_batch.control.member import Event, Permit, Spent
from concur_batch.control.policies import make_policy
from concur_batch.engine.protocol import Reading
from concur_batch.simulator.engine import Counters, EngineCore
from concur_batch.simulator.request import Completion, RequestRejected
from concur_batch.workload.schema import AnyControl

# When all agents have waited for so long, nobody will ever go on.
_DEADLOCK_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch.

    `seconds` until the last agent's end. `agents` are rows in the order of the plans, `control` rows of periods, with
    the columns of the run's tables of these names. `scheduled` are the requests that ended, as (the second in which
    their prefill began, "agent/turn"), in that order; equal lists mean equally composed batches. `counters` are the
    engines' own at the end, by pool; those of an engine that died are lost, as in reality.
    """

    seconds: float
    agents: list[Row]
    control: list[Row]
    scheduled: list[tuple[float, str]]
    counters: dict[str, Counters]


def simulate_batch(
    plans: Iterable[Plan],
    control: AnyControl,
    engines: Mapping[str, EnginePlan],
    shared_tokens: int = 0,
    make: MakePolicy = make_policy,
) -> BatchResult:
    """Run these agents, all there from the start, to their ends. `shared_tokens` begin the prompt of every one, `make`
    is as the Governor's.

    An agent ends `finished`, or `oversized` when no engine can ever take its next turn whole. Raises RuntimeError
    where all agents have waited for an hour.
    """
    return _Batch(plans, control, engines, shared_tokens, make).run()


class _Batch:
    def __init__(
        self,
        plans: Iterable[Plan],
        control: AnyControl,
        engines: Mapping[str, EnginePlan],
        shared_tokens: int,
        make: MakePolicy,
    ) -> None:
        self._agents = make_agents(plans, shared_tokens)
        self._living = dict(self._agents)
        self._engines = engines
        self._largest_tokens = max(engine.config.pool_tokens for engine in engines.values())
        self._cores = {name: EngineCore(engine.config, engine.cost) for name, engine in engines.items()}
        self._governor = Governor(control, list(engines), len(self._agents), make)
        self._reading_seconds = control.period_seconds / self._governor.readings_per_period
        self._readings: dict[str, list[Reading]] = {name: [] for name in engines}
        self._control_rows: list[Row] = []
        self._now_seconds = 0.0
        self._last_start_seconds = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self._permits: deque[Permit] = deque()
        self._changed: dict[str, PlannedAgent] = {}  # began to generate or to use a tool since the last period
        self._in_flight: dict[str, dict[str, PlannedAgent]] = {name: {} for name in engines}  # by pool and rid
        self._scheduled: list[tuple[float, str]] = []

    def run(self) -> BatchResult:
        for name, window in self._governor.admission.windows.items():
            window.pool_tokens = self._pool_tokens(name)
        self._permits += self._governor.begin(0.0)
        for name, engine in self._engines.items():
            if engine.outage_seconds is not None:
                self._at(engine.outage_seconds[0], partial(self._stop, name))
                self._at(engine.outage_seconds[1], partial(self._restart, name))
        for agent in self._agents.values():
            self._at(0.0, partial(self._ask, agent))
        self._at(self._reading_seconds, partial(self._read, 1))
        while self._living:
            self._go_on()
        self._end_period()  # so that the end is on record
        return BatchResult(
            seconds=self._now_seconds,
            agents=[agent.row for agent in self._agents.values()],
            control=self._control_rows,
            scheduled=sorted(self._scheduled),
            counters={name: core.counters() for name, core in self._cores.items()},
        )

    def _go_on(self) -> None:
        """To the next moment at which anything can happen, and through all that happens then."""
        moments = (core.next_event_seconds() for core in self._cores.values())
        self._now_seconds = min([self._timers[0][0], *(seconds for seconds in moments if seconds is not None)])
        for name, core in self._cores.items():
            for completion in core.advance(self._now_seconds):
                self._complete(name, completion)
                self._obey()
        while self._living and self._timers[0][0] <= self._now_seconds:
            heapq.heappop(self._timers)[2]()
            self._obey()

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (seconds, next(self._serial), action))

    # Agents

    def _ask(self, agent: PlannedAgent) -> None:
        """At a boundary: generate where its leave is enough, else ask once and wait."""
        pool = agent.claim.pool
        outgrown = pool is not None and agent.prompt_tokens >= self._pool_tokens(pool) and self._may_move(agent, pool)
        event = agent.claim.asks(agent.wish(outgrown=outgrown), self._governor.admission.rules, self._now_seconds)
        if event is None:
            self._generate(agent)
        else:
            self._send(event)

    def _send(self, event: Event) -> None:
        self._permits += self._governor.admission.take(event, self._now_seconds)

    def _obey(self) -> None:
        """Take over the permits one by one, as each may lead to more."""
        while self._permits:
            permit = self._permits.popleft()
            agent = self._living.get(permit.agent)
            if agent is None:
                continue
            event = agent.claim.takes(permit, self._now_seconds)
            if event is not None:
                self._send(event)
            elif agent.claim.waits and agent.claim.allowed:
                self._generate(agent)

    def _generate(self, agent: PlannedAgent) -> None:
        pool = agent.passes(self._now_seconds)
        self._changed[agent.name] = agent
        self._last_start_seconds = self._now_seconds
        if pool not in self._cores:
            self._find_down(agent)
            return
        try:
            self._cores[pool].submit(agent.request(), self._now_seconds)
        except RequestRejected:
            self._find_small(agent, pool)
        else:
            self._in_flight[pool][agent.rid] = agent

    def _complete(self, pool: str, completion: Completion) -> None:
        agent = self._in_flight[pool].pop(completion.rid)
        turn = agent.turn
        recomputed_tokens = agent.recomputed_tokens(completion, self._engines[pool].config.page_size)
        taken_seconds = self._now_seconds - agent.claim.since_seconds
        kept_tokens, lost_tokens = (0, 0) if agent.paused else (agent.known_tokens, recomputed_tokens)
        spent = Spent(
            completion.prompt_tokens,
            completion.cached_tokens,
            recomputed_tokens,
            taken_seconds,
            kept_tokens,
            lost_tokens,
            agent.prefill_rate(completion),
        )
        self._governor.spent(pool, spent)
        assert completion.scheduled_seconds is not None, "a request that ended has been scheduled"
        self._scheduled.append((completion.scheduled_seconds, completion.rid))
        cut = completion.completion_tokens < turn.output_tokens  # the pool had no room for more
        if cut and self._may_move(agent, pool):
            self._find_small(agent, pool)
            return
        agent.account(completion, recomputed_tokens)
        if cut:
            self._end(agent, "oversized")
        elif agent.row["turns"] == len(agent.plan.turns):
            self._end(agent, "finished")
        else:
            agent.begin_tool()
            self._at(self._now_seconds + turn.tool_seconds, partial(self._ask, agent))
            self._changed[agent.name] = agent
            event = agent.claim.generated(agent.context_tokens, self._governor.admission.rules, self._now_seconds)
            if event is not None:
                self._send(event)

    def _end(self, agent: PlannedAgent, status: str) -> None:
        agent.row |= {"status": status, "ended_seconds": self._now_seconds}
        del self._living[agent.name]
        for core in self._cores.values():  # it may have moved
            core.close_session(agent.name)
        self._send(Event("release", agent.name))

    def _may_move(self, agent: PlannedAgent, pool: str) -> bool:
        """Whether a pool that is too small for its generation is not the largest, which may hold it."""
        return self._pool_tokens(pool) < self._largest_tokens and agent.prompt_tokens < self._largest_tokens

    def _find_small(self, agent: PlannedAgent, pool: str) -> None:
        """Its pool cannot hold it: it asks for a larger one, or ends."""
        if not self._may_move(agent, pool):
            self._end(agent, "oversized")
            return
        agent.refused_tokens = self._pool_tokens(pool)
        agent.claim.refuse("large")
        # Control knows the sizes of the pools once a period has ended; before, it may give leave for this one again.
        self._at(self._now_seconds + self._governor.control.period_seconds, partial(self._ask, agent))

    def _find_down(self, agent: PlannedAgent) -> None:
        agent.claim.refuse("down")
        self._at(self._now_seconds, partial(self._ask, agent))

    def _pool_tokens(self, pool: str) -> int:
        return self._engines[pool].config.pool_tokens

    # Engines

    def _stop(self, pool: str) -> None:
        del self._cores[pool]
        lost = list(self._in_flight[pool].values())
        self._in_flight[pool].clear()
        for agent in lost:
            self._find_down(agent)

    def _restart(self, pool: str) -> None:
        engine = self._engines[pool]
        self._cores[pool] = EngineCore(engine.config, engine.cost)

    # Control

    def _read(self, number: int) -> None:
        """Take a reading of every engine; the period ends with its last."""
        for name, core in self._cores.items():
            self._readings[name].append(make_reading(core.counters(), self._now_seconds))
        if number % self._governor.readings_per_period == 0:
            self._end_period()
            self._check_progress()
        self._at((number + 1) * self._reading_seconds, partial(self._read, number + 1))

    def _end_period(self) -> None:
        beats = [agent.claim.beat() for name, agent in self._changed.items() if name in self._living]
        self._changed.clear()
        self._governor.admission.beat([beat for beat in beats if beat is not None], self._now_seconds)
        for pool, in_flight in self._in_flight.items():
            if in_flight:  # of which the first has taken the longest
                claim = next(iter(in_flight.values())).claim
                self._governor.spent(pool, Spent(longest_seconds=self._now_seconds - claim.since_seconds))
        permits, rows = self._governor.period(self._readings, self._now_seconds)
        self._readings = {name: [] for name in self._engines}
        self._permits += permits
        self._control_rows += rows

    def _check_progress(self) -> None:
        if self._now_seconds - self._last_start_seconds <= _DEADLOCK_SECONDS:
            return
        if all(agent.claim.waits for agent in self._living.values()):
            raise RuntimeError(f"{len(self._living)} agents wait and nobody goes on at {self._now_seconds} s")
