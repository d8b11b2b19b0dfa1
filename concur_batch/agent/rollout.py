"""One attempt of one agent, from its first wish to generate to its end.

A turn: admission -> generation by token ids -> parsed action -> tools -> observation appended -> record committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from concur_batch.agent.actions import Answer, Call, Calls, Malformed, Truncated, parse
from concur_batch.agent.gate import Draining, Pass, Wish
from concur_batch.agent.limits import Bound, Budget, cut, limit, oversized
from concur_batch.agent.prompting import initial_messages, observation_messages, retry_messages
from concur_batch.agent.services import Services
from concur_batch.agent.spec import AgentSpec, Ending
from concur_batch.agent.tally import Tally
from concur_batch.agent.transcript import Transcript
from concur_batch.agent.verdict import judge
from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineDown,
    EngineError,
    Generation,
    GenerationRequest,
    PoolOverflow,
)
from concur_batch.trace.encode import encode_turn
from concur_batch.workload.schema import Sampling
from tools_env.bubblewrap import SandboxUnavailable
from tools_env.spec import Session, ToolResult

# Above this many characters an observation is tokenized in a thread: 1,000 agents share one event loop.
_INLINE_CHARACTERS = 500
# Above this a first prompt is: there is one an agent, and what prompts begin with alike is tokenized once.
_INLINE_PROMPT_CHARACTERS = 10_000
# So often may pools go down under one generation before the agent counts as failed by the infrastructure.
_MOST_DOWNS = 8


class Rollout:
    """Runs one attempt; `tally` grows while it runs, for live views."""

    def __init__(self, spec: AgentSpec, services: Services) -> None:
        self.spec = spec
        self.tally = Tally()
        self._services = services
        self._transcript = Transcript(services.tokenizer)
        self._malformed_in_a_row = 0
        self._started_seconds = services.clock()
        self._admitted_seconds: float | None = None
        # Of a fixed width, since engines abort by rid prefix; unique among the runs that share an engine.
        digest = hashlib.blake2b(f"{services.run}\0{spec.agent_id}".encode(), digest_size=8).hexdigest()
        self._rid = f"{digest}-{spec.attempt:02d}"
        # Each attempt asks for a place of its own: no permit of the one before can be taken for its own.
        self._place = f"{spec.agent_id}#{spec.attempt}"
        deadlines = (spec.traits.deadline_seconds, services.deadline_seconds)
        self._budget = Budget(
            services.limits,
            services.sampling.max_tokens,
            services.context_tokens,
            services.kv_budget_tokens,
            min((seconds for seconds in deadlines if seconds is not None), default=None),
        )
        self._session: Session | None = None
        self._pool = ""
        self._ended_seconds: float | None = None  # its turns; a check may follow
        self._cancelled = False
        self._key = {
            "agent_id": spec.agent_id,
            "task_id": spec.task_id,
            "sample": spec.sample,
            "attempt": spec.attempt,
        }

    async def run(self) -> tuple[Ending, dict[str, Any]]:
        """Run to the end; returns it and the agent's row, whose `final` the caller decides. Raises Draining."""
        services = self._services
        try:
            try:
                ending = await self._turns()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._cancelled or task is None:
                    raise
                task.uncancel()
                ending = Ending("cancelled", "cancelled", "cancelled", "by the operator")
            except (EngineError, SandboxUnavailable, SandboxFailed) as error:
                ending = Ending("failed", type(error).__name__, "infrastructure", str(error))
            except Draining:
                raise
            except Exception as error:  # a fault of ours, or one that nobody foresaw: only this agent notices
                ending = Ending("failed", "error", "infrastructure", f"{type(error).__name__}: {error}")
            self._ended_seconds = services.clock()
            services.gate.leave(self._place)  # before the check: it needs no place at the engine
            row = self._row(ending)
            if ending.status not in ("failed", "cancelled") and self.spec.check is not None:
                row |= await judge(self.spec.check, ending.answer, self._workspace)
            return ending, row
        finally:
            services.gate.leave(self._place)
            if self._session is not None:
                with contextlib.suppress(Exception):  # a workspace that stays behind is swept at the run's end
                    await self._session.close(keep=services.keep_workspaces)

    def cancel(self, task: asyncio.Task[None]) -> bool:
        """End the agent, which runs in `task`, with status `cancelled`; False if it is at its end already."""
        if self._ended_seconds is not None or self._cancelled:
            return False
        self._cancelled = True
        task.cancel()
        return True

    def standing(self) -> dict[str, Any]:
        """What the agent does now, for how many seconds, and how far it is."""
        standing, seconds, pool = self._services.gate.standing(self._place)
        state = standing.value
        if self._ended_seconds is not None:  # it has left the gate
            state, seconds = "checking", self._services.clock() - self._ended_seconds
        return {
            "agent_id": self.spec.agent_id,
            "attempt": self.spec.attempt,
            "state": state,
            "state_seconds": seconds,
            "pool": pool,
            "turns": self.tally.turns,
            "context_tokens": len(self._transcript.ids),
            "pauses": self.tally.pauses,
            "running_seconds": self._services.clock() - self._started_seconds,
            "active_seconds": self.tally.active_seconds,
        }

    async def _turns(self) -> Ending:
        services = self._services
        await services.turnstile.enter()
        messages, tools = initial_messages(
            services.system, self.spec.prompt, services.specs, services.format, services.tokenizer.template
        )
        if len(self.spec.prompt) > _INLINE_PROMPT_CHARACTERS:
            start = self._transcript.start
            await asyncio.get_running_loop().run_in_executor(services.encoder, start, messages, tools)
        else:
            self._transcript.start(messages, tools)
        while True:
            ending = self._over_limit()
            if ending is not None:
                return ending
            wanted_seconds = services.clock()
            leave = await self._enter()
            if leave is None:
                return self._budget.past_deadline()
            if self._admitted_seconds is None:
                self._admitted_seconds = services.clock()
            session = await self._workspace()
            # A pause may have outlasted the wall clock's limit.
            ending = self._over_limit() or await self._turn(session, wanted_seconds, leave)
            if ending is not None:
                return ending

    async def _enter(self) -> Pass | None:
        """Wait for leave to generate; None where the agent's deadline comes first."""
        services, transcript = self._services, self._transcript
        wish = Wish(len(transcript.ids), len(transcript.ids) - transcript.known_tokens)
        deadline_seconds = self._budget.deadline_seconds
        left = None if deadline_seconds is None else deadline_seconds - services.clock()
        try:
            async with asyncio.timeout(left):
                await services.records.room()
                leave = await services.gate.enter(self._place, wish, self.spec.traits)
        except TimeoutError:
            return None
        await services.turnstile.enter()
        self.tally.pauses += leave.waited
        self._pool = leave.pool
        return leave

    def _over_limit(self) -> Ending | None:
        pools = [pool.tokens for pool in self._services.pools.values()]
        largest = None if None in pools else max(tokens for tokens in pools if tokens is not None)
        history_tokens, now_seconds = len(self._transcript.ids), self._services.clock()
        return self._budget.over(self.tally, history_tokens, largest, self._admitted_seconds, now_seconds)

    async def _generate(self, leave: Pass) -> tuple[Generation, Bound, float]:
        """One generation, the limit that would cut it, and when it began.

        Where a pool goes down under it, it is made anew in the next one.
        """
        services = self._services
        downs = 0
        while True:
            pool = services.pools[self._pool]
            bound = self._budget.next_output(self.tally, len(self._transcript.ids), pool.tokens)
            request = GenerationRequest(
                rid=f"{self._rid}-{self.tally.turns:05d}",
                input_ids=self._transcript.ids,
                max_new_tokens=bound.tokens,
                seed=self.spec.seed,
                sampling=sampling_parameters(services.sampling),
                logprobs=services.sampling.logprobs,
                dp_rank=pool.dp_rank,
            )
            started_seconds = services.clock()
            try:
                return await pool.engine.generate(request), bound, started_seconds
            except EngineDown as error:
                downs += 1
                if downs == _MOST_DOWNS:
                    raise EngineError(f"pools went down {downs} times under one generation, at last: {error}") from None
            # Parked until the controller knows a pool that answers. It may believe in this one: do not ask at once.
            services.gate.found_down(self._place)
            parked_seconds = services.clock()
            await asyncio.sleep(random.uniform(0, min(30.0, 0.125 * 2**downs)))
            if await self._enter() is None:
                raise DeadlinePassed
            leave.paused_seconds += services.clock() - parked_seconds

    async def _turn(self, session: Session, wanted_seconds: float, leave: Pass) -> Ending | None:
        services, transcript, tally = self._services, self._transcript, self.tally
        try:
            generation, bound, generation_started = await self._generate(leave)
        except PoolOverflow as error:
            return oversized(str(error))
        except ContextOverflow as error:
            return limit("context", str(error))
        except DeadlinePassed:
            return self._budget.past_deadline()
        generation_seconds = services.clock() - generation_started
        delta = transcript.take_delta()
        services.gate.generated(self._place, generation.input_tokens + len(generation.output_ids))
        await services.turnstile.enter()
        tokens = transcript.account(
            generation.input_tokens,
            generation.cached_device_tokens,
            generation.cached_host_tokens,
            generation.cached_storage_tokens,
            services.pools[self._pool].page_size,
        )
        services.spend(self._pool, generation.input_tokens, generation.cached_device_tokens, tokens.recomputed)
        transcript.generated(generation.output_ids)
        text = services.tokenizer.decode(generation.output_ids)
        thinking = services.tokenizer.template.opens_thinking
        action = parse(services.format, text, generation.finish_reason, services.specs, thinking=thinking)

        tools_started = services.clock()
        calls: Sequence[Call] = action.calls if isinstance(action, Calls) else ()
        results, tool_rows = await self._execute(session, calls)
        tool_queue_seconds = sum(result.queue_seconds for result in results)
        tool_seconds = services.clock() - tools_started - tool_queue_seconds
        ending, messages = self._consequence(action, calls, results, bound)
        if messages:
            await self._observe(messages)

        tally.turns += 1
        tally.tool_calls += len(calls)
        row = {
            **self._key,
            "turn": tally.turns - 1,
            "rid": f"{self._rid}-{tally.turns - 1:05d}",
            "replica": self._pool,
            "request_attempts": generation.attempts,
            "input_delta_ids": delta,
            "output_ids": np.asarray(generation.output_ids, dtype=np.int32),
            "output_logprobs": generation.logprobs,
            "ids_estimated": False,
            "output_text": text,
            "finish_reason": generation.finish_reason,
            "action": _ACTION_NAMES[type(action)],
            "input_tokens": generation.input_tokens,
            "output_tokens": len(generation.output_ids),
            "cached_device_tokens": generation.cached_device_tokens,
            "cached_host_tokens": generation.cached_host_tokens,
            "cached_storage_tokens": generation.cached_storage_tokens,
            "first_tokens": tokens.first,
            "recomputed_tokens": tokens.recomputed,
            "rounding_tokens": tokens.rounding,
            "retractions": generation.retractions,
            "context_tokens": generation.input_tokens + len(generation.output_ids),
            "started_seconds": wanted_seconds,
            "generation_started_seconds": generation_started,
            "ended_seconds": services.clock(),
            "pending_seconds": leave.pending_seconds,
            "paused_seconds": leave.paused_seconds,
            "queue_seconds": leave.queue_seconds,
            "generation_seconds": generation_seconds,
            "tool_queue_seconds": tool_queue_seconds,
            "tool_seconds": tool_seconds,
            "engine_queue_seconds": generation.queue_seconds,
            "engine_prefill_seconds": generation.prefill_seconds,
            "engine_decode_seconds": generation.decode_seconds,
        }
        tally.add(row)
        services.records.put(encode_turn(row, tool_rows))
        return ending

    async def _execute(self, session: Session, calls: Sequence[Call]) -> tuple[list[ToolResult], list[dict[str, Any]]]:
        """Run the calls of one turn in the order the model wrote them: they share a workspace."""
        results: list[ToolResult] = []
        rows: list[dict[str, Any]] = []
        for index, call in enumerate(calls):
            started_seconds = self._services.clock()
            result = await session.call(call.name, call.arguments)
            if result.status == "crashed":
                raise SandboxFailed(result.output)
            results.append(result)
            rows.append(
                {
                    **self._key,
                    "turn": self.tally.turns,
                    "call": index,
                    "name": call.name,
                    "arguments": orjson.dumps(call.arguments).decode(),
                    "status": result.status,
                    "output": result.output,
                    "exit_code": result.exit_code,
                    "truncated": result.truncated,
                    "output_bytes": result.output_bytes,
                    "started_seconds": started_seconds,
                    "queue_seconds": result.queue_seconds,
                    "seconds": result.seconds,
                }
            )
        return results, rows

    def _consequence(
        self, action: Any, calls: Sequence[Call], results: Sequence[ToolResult], bound: Bound
    ) -> tuple[Ending | None, list[dict[str, Any]]]:
        """Whether the turn ends the agent, and the observation messages if it does not; `bound` is what its output
        would be cut by."""
        services = self._services
        match action:
            case Answer(text=text):
                return Ending("finished", "answer", answer=text), []
            case Truncated():
                return cut(bound), []
            case Malformed(reason=reason):
                self.tally.malformed_turns += 1
                self._malformed_in_a_row += 1
                if self._malformed_in_a_row >= services.limits.malformed:
                    return Ending("failed", "malformed", "model", reason), []
                return None, retry_messages(reason, services.format)
        self._malformed_in_a_row = 0
        answers = [result.answer for result in results if result.answer is not None]
        if answers:
            return Ending("finished", "submit", answer=answers[-1]), []
        return None, observation_messages(
            list(zip(calls, results, strict=True)), services.format, services.tokenizer.template
        )

    async def _observe(self, messages: list[dict[str, Any]]) -> None:
        if sum(len(str(message["content"])) for message in messages) > _INLINE_CHARACTERS:
            encode = self._transcript.encode_observation
            ids = await asyncio.get_running_loop().run_in_executor(self._services.encoder, encode, messages)
        else:
            ids = self._transcript.encode_observation(messages)
        self._transcript.append(ids)

    async def _workspace(self) -> Session:
        if self._session is None:
            self._session = await self._services.tools.open(self.spec.agent_id, self.spec.files)
        return self._session

    def _row(self, ending: Ending) -> dict[str, Any]:
        services, tally = self._services, self.tally
        return {
            **self._key,
            "status": ending.status,
            "end_reason": ending.reason,
            "failure_class": ending.failure_class,
            "error": ending.error,
            "answer": ending.answer,
            "seed": self.spec.seed,
            **{name: getattr(tally, name) for name in Tally.__slots__},
            "context_tokens": len(self._transcript.ids),
            "started_seconds": self._started_seconds,
            "admitted_seconds": self._admitted_seconds,
            "ended_seconds": services.clock(),
            "ended_at": datetime.now(UTC).isoformat(timespec="microseconds"),
            "host": services.host,
            "replica": self._pool,
        }


class DeadlinePassed(Exception):
    """The agent's deadline came while it waited for a pool."""


class SandboxFailed(Exception):
    """The sandbox itself failed: infrastructure, not the agent's doing."""


_ACTION_NAMES = {Calls: "calls", Answer: "answer", Malformed: "malformed", Truncated: "truncated"}


def sampling_parameters(sampling: Sampling) -> dict[str, Any]:
    """The engine's sampling parameters for a workload's; `extra` overrides."""
    parameters: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    if sampling.stop:
        parameters["stop"] = sampling.stop
    return parameters | sampling.extra
