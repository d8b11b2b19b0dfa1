"""A turn in which the model acts: its text is parsed, its calls are executed, what they return is observed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from concur_batch.agent.actions import Action, Answer, Call, Calls, Malformed, Truncated, parse
from concur_batch.agent.attempt import Attempt
from concur_batch.agent.claim import Pass
from concur_batch.agent.conversation import encode_pieces
from concur_batch.agent.limits import Bound, cut
from concur_batch.agent.prompting import observation_messages, retry_messages
from concur_batch.agent.rows import Row, tool_row
from concur_batch.agent.spec import Ending
from concur_batch.agent.turn import Act, Turn
from concur_batch.engine.protocol import Generation
from tools_env.spec import Session, ToolResult

T = TypeVar("T")

# Above this many characters an observation is tokenized in a thread: 1,000 agents share one event loop.
_INLINE_CHARACTERS = 500
_NAMES: Mapping[type[Action], Literal["calls", "answer", "malformed", "truncated"]] = {
    Calls: "calls",
    Answer: "answer",
    Malformed: "malformed",
    Truncated: "truncated",
}


class SandboxFailed(Exception):
    """The sandbox itself failed: infrastructure, not the agent's doing."""


class ActingTurn(Turn):
    """See Turn; `session` are the agent's tools."""

    def __init__(
        self, attempt: Attempt, session: Session, leave: Pass, wanted_seconds: float, sampling: Mapping[str, Any]
    ) -> None:
        super().__init__(attempt, leave, wanted_seconds, sampling)
        self._session = session
        self._action: Action = Truncated()  # until it is read

    async def _read(self, generation: Generation) -> tuple[Generation, str]:
        """A message's ids are our estimate."""
        services, conversation = self._services, self._attempt.conversation
        tokenizer, reason = services.tokenizer, generation.finish_reason
        if conversation is None or generation.message is None:
            generation, text = await super()._read(generation)
            thinking = tokenizer.template.opens_thinking
            self._action = parse(services.config.format, text, reason, services.specs, thinking=thinking)
            return generation, text
        pieces, self._action = conversation.hear(generation.message, reason)
        text = "".join(piece.text for piece in pieces)
        ids = await self._encode(len(text), encode_pieces, tokenizer, pieces)
        return replace(generation, output_ids=ids), text

    async def _act(self, generation: Generation, bound: Bound) -> Act:
        services, action = self._services, self._action
        started_seconds = services.clock()
        calls: Sequence[Call] = action.calls if isinstance(action, Calls) else ()
        results, rows = await self._execute(calls)
        queue_seconds = sum(result.queue_seconds for result in results)
        seconds = services.clock() - started_seconds - queue_seconds
        ending, messages = self._consequence(action, calls, results, bound)
        if messages:
            await self._observe(messages)
        return Act(_NAMES[type(action)], ending, rows, seconds, queue_seconds)

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
        attempt, config, conversation = self._attempt, self._services.config, self._attempt.conversation
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
                if conversation is not None:
                    conversation.correct(reason)
                return None, retry_messages(reason, config.format)
        attempt.malformed_in_a_row = 0
        answers = [result.answer for result in results if result.answer is not None]
        if answers:
            return Ending("finished", "submit", answer=answers[-1]), []
        exchanges = list(zip(calls, results, strict=True))
        if conversation is not None:
            conversation.observe(exchanges)
        return None, observation_messages(exchanges, config.format, self._services.tokenizer.template)

    async def _observe(self, messages: list[dict[str, Any]]) -> None:
        transcript = self._attempt.transcript
        characters = sum(len(str(message["content"])) for message in messages)
        transcript.append(await self._encode(characters, transcript.encode_observation, messages))

    async def _encode(self, characters: int, encode: Callable[..., T], *arguments: Any) -> T:
        """`encode(*arguments)`, in a thread where it is long."""
        if characters <= _INLINE_CHARACTERS:
            return encode(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._services.encoder, encode, *arguments)
