"""One turn: generation -> what follows from it, observation appended -> record committed."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from concur_batch.agent.attempt import Attempt
from concur_batch.agent.claim import Pass, Refusal
from concur_batch.agent.limits import Bound, limit, oversized
from concur_batch.agent.rows import Row, generation_row
from concur_batch.agent.services import Pool
from concur_batch.agent.spec import Ending
from concur_batch.agent.transcript import TurnTokens
from concur_batch.control.member import Spent
from concur_batch.control.prefill import request_rate
from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineDown,
    EngineError,
    Generation,
    GenerationRequest,
    PoolOverflow,
)
from concur_batch.trace.encode import encode_turn

# So often may pools refuse one generation, in all about half a minute apart, before the agent ends for it.
_MOST_REFUSALS = 8


@dataclass(slots=True)
class Act:
    """What followed from a generation. `ending` is set where it ends the agent; `tools` are the rows of its calls, and
    `tools_mark` brings the tools back to how they were left."""

    name: Literal["calls", "answer", "malformed", "truncated"]
    ending: Ending | None = None
    tools: list[Row] = field(default_factory=list)
    tool_seconds: float = 0.0
    tool_queue_seconds: float = 0.0
    tools_mark: str | None = None


class Turn(ABC):
    """Wanted since `wanted_seconds`, with `leave` to generate. `sampling` are the engine's parameters.

    `generation_seconds` is set once the generation has ended.
    """

    def __init__(self, attempt: Attempt, leave: Pass, wanted_seconds: float, sampling: Mapping[str, Any]) -> None:
        self._attempt = attempt
        self._services = attempt.services
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
        services.gate.generated(attempt.place, generation.context_tokens)
        await services.turnstile.enter()
        tokens = self._account(generation)
        generation, text = await self._read(generation)
        transcript.generated(generation.output_ids, None if generation.message is None else generation.context_tokens)
        act = await self._act(generation, bound)

        number = attempt.tally.turns
        row = generation_row(attempt.key, generation, tokens, self._leave) | {
            "turn": number,
            "rid": f"{attempt.rid}-{number:05d}",
            "replica": attempt.pool,
            "input_delta_ids": delta,
            "output_text": text,
            "action": act.name,
            "tools_mark": act.tools_mark,
            "started_seconds": self._wanted_seconds,
            "generation_started_seconds": self._started_seconds,
            "ended_seconds": services.clock(),
            "generation_seconds": self.generation_seconds,
            "tool_queue_seconds": act.tool_queue_seconds,
            "tool_seconds": act.tool_seconds,
        }
        attempt.tally.add(row, len(act.tools))
        attempt.record(number, encode_turn(row, act.tools), act.tools_mark)
        return act.ending

    async def _read(self, generation: Generation) -> tuple[Generation, str]:
        """The generation with its token ids, and its text."""
        return generation, self._services.tokenizer.decode(generation.output_ids)

    @abstractmethod
    async def _act(self, generation: Generation, bound: Bound) -> Act:
        """Do what follows from a generation that has been read, and append the observation; `bound` is what its output
        would be cut by."""

    def _bound(self, pool: Pool) -> Bound:
        """How long the output may be."""
        attempt = self._attempt
        return attempt.budget.next_output(attempt.tally, attempt.transcript.tokens, pool.tokens)

    async def _generate(self) -> tuple[Generation, Bound]:
        """The generation, and the limit that would cut it.

        Where its pool goes down under it, or is too small for it and another is not, it is made anew in the next one.
        """
        attempt, services = self._attempt, self._services
        tries = 0
        while True:
            tries += 1
            pool = services.pools[attempt.pool]
            bound = self._bound(pool)
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
            chat=None if attempt.conversation is None else attempt.conversation.chat,
            priority=attempt.spec.traits.priority if self._services.config.priorities else None,
            session=attempt.session,
        )

    def _account(self, generation: Generation) -> TurnTokens | None:
        """What became of the prompt's tokens, told to the controller too; None where the engine tells no hits, which
        are then no misses either."""
        hits, known_tokens = generation.cached_device_tokens, self._attempt.transcript.known_tokens
        tokens = self._attempt.transcript.account(
            generation.input_tokens,
            hits,
            generation.cached_host_tokens,
            generation.cached_storage_tokens,
            self._services.pools[self._attempt.pool].page_size,
        )
        spent = Spent(longest_seconds=self._services.clock() - self._started_seconds)
        if hits is not None and tokens is not None:
            spent = spent._replace(
                input_tokens=generation.input_tokens,
                device_hit_tokens=hits,
                recomputed_tokens=tokens.recomputed,
                prefill_tokens_per_second=request_rate(tokens.computed, generation.prefill_seconds),
            )
            if not self._leave.paused:
                spent = spent._replace(kept_tokens=known_tokens, lost_tokens=tokens.recomputed)
        self._services.spend(self._attempt.pool, spent)
        return tokens
