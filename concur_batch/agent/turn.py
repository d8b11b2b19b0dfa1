"""One turn: generation by token ids -> parsed action -> tools -> observation appended -> record committed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from concur_batch.agent.actions import Action, Answer, Call, Calls, Malformed, Truncated, parse
from concur_batch.agent.attempt import Attempt
from concur_batch.agent.claim import Pass, Refusal
from concur_batch.agent.limits import Bound, cut, limit, oversized
from concur_batch.agent.prompting import observation_messages, retry_messages
from concur_batch.agent.rows import Row, generation_row, tool_row
from concur_batch.agent.services import Pool
from concur_batch.agent.spec import Ending
from concur_batch.agent.transcript import TurnTokens
from concur_batch.control.member import Spent
from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineDown,
    EngineError,
    Generation,
    GenerationRequest,
    PoolOverflow,
)
from concur_batch.trace.encode import encode_turn
from tools_env.spec import Session, ToolResult

# Above this many characters an observation is tokenized in a thread: 1,000 agents share one event loop.
_INLINE_CHARACTERS = 500
# So often may pools refuse one generation, in all about half a minute apart, before the agent ends for it.
_MOST_REFUSALS = 8
_ACTION_NAMES = {Calls: "calls", Answer: "answer", Malformed: "malformed", Truncated: "truncated"}


class SandboxFailed(Exception):
    """The sandbox itself failed: infrastructure, not the agent's doing."""


class Turn:
    """Wanted since `wanted_seconds`, with `leave` to generate. `sampling` are the engine's parameters.

    `generation_seconds` is set once the generation has ended.
    """

    def __init__(
        self, attempt: Attempt, session: Session, leave: Pass, wanted_seconds: float, sampling: Mapping[str, Any]
    ) -> None:
        self._attempt = attempt
        self._services = attempt.services
        self._session = session
        self._leave = leave
        self._wanted_seconds = wanted_seconds
        self._sampling = sampling
        self._started_seconds = 0.0  # the generation
        self.generation_seconds = 0.0

    async def run(self) -> Ending | None:
        """Run it to its record; the agent's ending, if it is one. Raises DeadlinePassed, Draining, EngineError or
        SandboxFailed, and leaves no record then."""
        attempt, services, transcript = self._attempt, self._services, self._attempt.transcript
        try:
            generation, bound = await self._generate()
        except PoolOverflow as error:
            return oversized(str(error))
        except ContextOverflow as error:
            return limit("context", str(error))
        self.generation_seconds = services.clock() - self._started_seconds
        delta = transcript.take_delta()
        services.gate.generated(attempt.place, generation.input_tokens + len(generation.output_ids))
        await services.turnstile.enter()
        tokens = self._account(generation)
        transcript.generated(generation.output_ids)
        text = services.tokenizer.decode(generation.output_ids)
        thinking = services.tokenizer.template.opens_thinking
        action = parse(services.config.format, text, generation.finish_reason, services.specs, thinking=thinking)

        tools_started_seconds = services.clock()
        calls: Sequence[Call] = action.calls if isinstance(action, Calls) else ()
        results, tool_rows = await self._execute(calls)
        tool_queue_seconds = sum(result.queue_seconds for result in results)
        tool_seconds = services.clock() - tools_started_seconds - tool_queue_seconds
        ending, messages = self._consequence(action, calls, results, bound)
        if messages:
            await self._observe(messages)

        number = attempt.tally.turns
        row = generation_row(attempt.key, generation, tokens, self._leave) | {
            "turn": number,
            "rid": f"{attempt.rid}-{number:05d}",
            "replica": attempt.pool,
            "input_delta_ids": delta,
            "output_text": text,
            "action": _ACTION_NAMES[type(action)],
            "started_seconds": self._wanted_seconds,
            "generation_started_seconds": self._started_seconds,
            "ended_seconds": services.clock(),
            "generation_seconds": self.generation_seconds,
            "tool_queue_seconds": tool_queue_seconds,
            "tool_seconds": tool_seconds,
        }
        attempt.tally.turns += 1
        attempt.tally.tool_calls += len(calls)
        attempt.tally.add(row)
        services.records.put(encode_turn(row, tool_rows))
        return ending

    async def _generate(self) -> tuple[Generation, Bound]:
        """The generation, and the limit that would cut it.

        Where its pool goes down under it, or is too small for it and another is not, it is made anew in the next one.
        """
        attempt, services = self._attempt, self._services
        tries = 0
        while True:
            tries += 1
            pool = services.pools[attempt.pool]
            bound = attempt.budget.next_output(attempt.tally, len(attempt.transcript.ids), pool.tokens)
            may_move = tries < _MOST_REFUSALS and services.has_larger(pool)
            why: Refusal = "large"
            self._started_seconds = services.clock()
            try:
                generation = await pool.engine.generate(self._request(pool, bound))
            except EngineDown as error:
                if tries == _MOST_REFUSALS:
                    raise EngineError(f"pools refused one generation {tries} times, at last: {error}") from None
                why = "down"
            except PoolOverflow:
                if not may_move:
                    raise
            else:
                if not (may_move and bound.name == "pool" and generation.finish_reason == "length"):
                    return generation, bound
                self._account(generation)  # the engine has counted it, though nothing of it is kept
            await self._move(pool, why, tries)

    async def _move(self, pool: Pool, why: Refusal, tries: int) -> None:
        """Give the place back, and wait for leave for a pool that takes the generation."""
        attempt, services = self._attempt, self._services
        services.gate.refuse(attempt.place, why)
        # The controller may still believe in this pool: do not ask at once.
        await asyncio.sleep(random.uniform(0, min(30.0, 0.125 * 2**tries)))
        # An engine keeps some of its pool for itself: for one whom it refuses, the pool counts as filled.
        await attempt.enter((pool.tokens or 0) if why == "large" else 0)
        self._leave.paused_seconds += services.clock() - self._started_seconds

    def _request(self, pool: Pool, bound: Bound) -> GenerationRequest:
        attempt = self._attempt
        return GenerationRequest(
            rid=f"{attempt.rid}-{attempt.tally.turns:05d}",
            input_ids=attempt.transcript.ids,
            max_new_tokens=bound.tokens,
            seed=attempt.spec.seed,
            sampling=self._sampling,
            logprobs=self._services.config.sampling.logprobs,
            dp_rank=pool.dp_rank,
            priority=attempt.spec.traits.priority if self._services.config.priorities else None,
            session=attempt.session,
        )

    def _account(self, generation: Generation) -> TurnTokens:
        """What became of the prompt's tokens, told to the controller too."""
        tokens = self._attempt.transcript.account(
            generation.input_tokens,
            generation.cached_device_tokens,
            generation.cached_host_tokens,
            generation.cached_storage_tokens,
            self._services.pools[self._attempt.pool].page_size,
        )
        spent = Spent(
            generation.input_tokens,
            generation.cached_device_tokens,
            tokens.recomputed,
            self._services.clock() - self._started_seconds,
        )
        self._services.spend(self._attempt.pool, spent)
        return tokens

    async def _execute(self, calls: Sequence[Call]) -> tuple[list[ToolResult], list[Row]]:
        """Run the calls in the order the model wrote them: they share a workspace."""
        attempt = self._attempt
        results: list[ToolResult] = []
        rows: list[Row] = []
        for index, call in enumerate(calls):
            started_seconds = self._services.clock()
            result = await self._session.call(call.name, call.arguments)
            if result.status == "crashed":
                raise SandboxFailed(result.output)
            results.append(result)
            rows.append(tool_row(attempt.key, attempt.tally.turns, index, call, result, started_seconds))
        return results, rows

    def _consequence(
        self, action: Action, calls: Sequence[Call], results: Sequence[ToolResult], bound: Bound
    ) -> tuple[Ending | None, list[dict[str, Any]]]:
        """Whether the turn ends the agent, and the observation messages if it does not; `bound` is what its output
        would be cut by."""
        attempt, config = self._attempt, self._services.config
        match action:
            case Answer(text=text):
                return Ending("finished", "answer", answer=text), []
            case Truncated():
                return cut(bound), []
            case Malformed(reason=reason):
                attempt.tally.malformed_turns += 1
                attempt.malformed_in_a_row += 1
                if attempt.malformed_in_a_row >= config.limits.malformed:
                    return Ending("failed", "malformed", "model", reason), []
                return None, retry_messages(reason, config.format)
        attempt.malformed_in_a_row = 0
        answers = [result.answer for result in results if result.answer is not None]
        if answers:
            return Ending("finished", "submit", answer=answers[-1]), []
        exchanges = list(zip(calls, results, strict=True))
        return None, observation_messages(exchanges, config.format, self._services.tokenizer.template)

    async def _observe(self, messages: list[dict[str, Any]]) -> None:
        transcript = self._attempt.transcript
        if sum(len(str(message["content"])) for message in messages) > _INLINE_CHARACTERS:
            encode = transcript.encode_observation
            ids = await asyncio.get_running_loop().run_in_executor(self._services.encoder, encode, messages)
        else:
            ids = transcript.encode_observation(messages)
        transcript.append(ids)
