"""One attempt of one agent, from its first wish to generate to its end.

A turn: admission -> generation by token ids -> parsed action -> tools -> observation appended -> record committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import orjson

from concur_batch.agent.actions import Answer, Call, Calls, Malformed, Truncated, parse
from concur_batch.agent.gate import Draining, Pass, Wish
from concur_batch.agent.prompting import initial_messages, observation_messages, retry_messages
from concur_batch.agent.services import Services
from concur_batch.agent.spec import AgentSpec, AnswerCheck, CommandCheck, Ending
from concur_batch.agent.transcript import Transcript
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
from tools_env.sandbox import SandboxSession
from tools_env.spec import Session, ToolResult
from tools_env.verify import verify_answer, verify_command

# Above this many characters an observation is tokenized in a thread: 1,000 agents share one event loop.
_INLINE_CHARACTERS = 500
# So often may pools go down under one generation before the agent counts as failed by the infrastructure.
_MOST_DOWNS = 8


@dataclass(slots=True)
class Tally:
    """Sums over an agent's turns; the columns of the same names in `agents`."""

    turns: int = 0
    tool_calls: int = 0
    malformed_turns: int = 0
    pauses: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_device_tokens: int = 0
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0
    first_tokens: int = 0
    recomputed_tokens: int = 0
    rounding_tokens: int = 0
    retractions: int = 0
    pending_seconds: float = 0.0
    paused_seconds: float = 0.0
    queue_seconds: float = 0.0
    generation_seconds: float = 0.0
    tool_queue_seconds: float = 0.0
    tool_seconds: float = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a turn's row."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + row[name])

    @property
    def active_seconds(self) -> float:
        """Time that counts against the agent's own budget: pauses and queues do not."""
        return self.generation_seconds + self.tool_seconds


_SUMMED = [name for name in Tally.__slots__ if name not in ("turns", "tool_calls", "malformed_turns", "pauses")]


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
        self._session: Session | None = None
        self._pool = ""
        self._turning = False
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
                self._turning = True
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
            self._turning = False
            services.gate.leave(self._place)  # before the check: it needs no place at the engine
            row = self._row(ending)
            if ending.status not in ("failed", "cancelled") and self.spec.check is not None:
                row |= await self._verify(self.spec.check, ending)
            return ending, row
        finally:
            services.gate.leave(self._place)
            if self._session is not None:
                with contextlib.suppress(Exception):  # a workspace that stays behind is swept at the run's end
                    await self._session.close(keep=services.keep_workspaces)

    def cancel(self, task: asyncio.Task[None]) -> bool:
        """End the agent, which runs in `task`, with status `cancelled`; False if it is at its end already."""
        if not self._turning or self._cancelled:
            return False
        self._cancelled = True
        task.cancel()
        return True

    def standing(self) -> dict[str, Any]:
        """What the agent does now, for how many seconds, and how far it is."""
        state, seconds, pool = self._services.gate.standing(self._place)
        return {
            "agent_id": self.spec.agent_id,
            "attempt": self.spec.attempt,
            "state": state.value,
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
        self._transcript.start(messages, tools)
        while True:
            ending = self._over_limit()
            if ending is not None:
                return ending
            wanted_seconds = services.clock()
            leave = await self._enter()
            if leave is None:
                return self._past_deadline()
            if self._session is None:
                self._admitted_seconds = services.clock()
                self._session = await services.tools.open(self.spec.agent_id, self.spec.files)
            # A pause may have outlasted the wall clock's limit.
            ending = self._over_limit() or await self._turn(self._session, wanted_seconds, leave)
            if ending is not None:
                return ending

    async def _enter(self) -> Pass | None:
        """Wait for leave to generate; None where the agent's deadline comes first."""
        services, transcript = self._services, self._transcript
        wish = Wish(len(transcript.ids), len(transcript.ids) - transcript.known_tokens)
        left = None if self._deadline_seconds is None else self._deadline_seconds - services.clock()
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

    def _past_deadline(self) -> Ending:
        return _limit("deadline", f"not done by its deadline, {self._deadline_seconds:g} s after the run's start")

    @property
    def _deadline_seconds(self) -> float | None:
        own, common = self.spec.traits.deadline_seconds, self._services.deadline_seconds
        return min((deadline for deadline in (own, common) if deadline is not None), default=None)

    def _over_limit(self) -> Ending | None:
        limits, tally = self._services.limits, self.tally
        if tally.turns >= limits.turns:
            return _limit("turns", f"{limits.turns} turns")
        if len(self._transcript.ids) >= self._services.context_tokens:
            return _limit("context", f"the history fills the context of {self._services.context_tokens} tokens")
        pools = [pool.tokens for pool in self._services.pools.values()]
        largest = None if None in pools else max(tokens for tokens in pools if tokens is not None)
        if largest is not None and len(self._transcript.ids) >= largest:
            return _oversized(f"the history fills the whole KV pool of {largest} tokens")
        budget = self._services.kv_budget_tokens
        if budget is not None and len(self._transcript.ids) > budget:
            return _limit("kv_budget", f"the history has outgrown the budget of {budget} tokens")
        if limits.output_tokens is not None and tally.output_tokens >= limits.output_tokens:
            return _limit("output_tokens", f"{limits.output_tokens} output tokens")
        if limits.active_seconds is not None and tally.active_seconds >= limits.active_seconds:
            return _limit("active_seconds", f"{limits.active_seconds:g} s of generation and tools")
        admitted_seconds, now_seconds = self._admitted_seconds, self._services.clock()
        if (
            limits.wall_seconds is not None
            and admitted_seconds is not None
            and now_seconds - admitted_seconds >= limits.wall_seconds
        ):
            return _limit("wall_seconds", f"{limits.wall_seconds:g} s since its admission")
        if self._deadline_seconds is not None and now_seconds >= self._deadline_seconds:
            return self._past_deadline()
        return None

    def _bounds(self) -> dict[str, int]:
        """What would cut the next output, in tokens, by the name of the limit."""
        services, length = self._services, len(self._transcript.ids)
        bounds = {"length": services.sampling.max_tokens, "context": services.context_tokens - length}
        if services.limits.output_tokens is not None:
            bounds["output_tokens"] = services.limits.output_tokens - self.tally.output_tokens
        pool_tokens = services.pools[self._pool].tokens
        if pool_tokens is not None:
            bounds["pool"] = max(1, pool_tokens - length)
        return bounds

    async def _generate(self, leave: Pass) -> tuple[Generation, str, float]:
        """One generation, the name of the limit that would cut it, and when it began.

        Where a pool goes down under it, it is made anew in the next one.
        """
        services = self._services
        downs = 0
        while True:
            bounds = self._bounds()
            bound = min(bounds, key=lambda name: bounds[name])
            pool = services.pools[self._pool]
            request = GenerationRequest(
                rid=f"{self._rid}-{self.tally.turns:05d}",
                input_ids=self._transcript.ids,
                max_new_tokens=bounds[bound],
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
            await asyncio.sleep(random.uniform(0, min(30.0, 0.125 * 2**downs)))
            again = await self._enter()
            if again is None:
                raise DeadlinePassed
            leave.pool = again.pool
            leave.paused_seconds += again.paused_seconds

    async def _turn(self, session: Session, wanted_seconds: float, leave: Pass) -> Ending | None:
        services, transcript, tally = self._services, self._transcript, self.tally
        try:
            generation, bound, generation_started = await self._generate(leave)
        except PoolOverflow as error:
            return _oversized(str(error))
        except ContextOverflow as error:
            return _limit("context", str(error))
        except DeadlinePassed:
            return self._past_deadline()
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
        self, action: Any, calls: Sequence[Call], results: Sequence[ToolResult], bound: str
    ) -> tuple[Ending | None, list[dict[str, Any]]]:
        """Whether the turn ends the agent, and the observation messages if it does not; `bound` is what its output
        would be cut by."""
        services = self._services
        match action:
            case Answer(text=text):
                return Ending("finished", "answer", answer=text), []
            case Truncated():
                detail = "the turn's output was cut at its token limit; nothing in it was executed"
                return (_oversized(detail) if bound == "pool" else _limit(bound, detail)), []
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

    async def _verify(self, check: CommandCheck | AnswerCheck, ending: Ending) -> dict[str, Any]:
        """The reward columns. A check that could not be run leaves the reward null and says why."""
        began = time.monotonic()
        reward: float | None = None
        output: str | None = None
        try:
            match check:
                case AnswerCheck():
                    reward = verify_answer(ending.answer, check.expected, check.match)
                case CommandCheck():
                    if self._session is None:  # it ended before its first turn
                        self._session = await self._services.tools.open(self.spec.agent_id, self.spec.files)
                    assert isinstance(self._session, SandboxSession)  # a workload with such a check has a sandbox
                    verdict = await verify_command(self._session, check.command, check.files, check.deadline_seconds)
                    reward, output = verdict.reward, verdict.output
        except Exception as error:  # whatever it was, it says nothing of the agent's work
            output = f"the check could not be run: {type(error).__name__}: {error}"
        return {"reward": reward, "verify_output": output, "verify_seconds": time.monotonic() - began}

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


def _limit(reason: str, detail: str) -> Ending:
    return Ending("limit", reason, "limit", detail)


def _oversized(detail: str) -> Ending:
    return Ending("oversized", "pool", "limit", detail)


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
