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
from concur_batch.agent.rows import Row, intent_row, tool_row
from concur_batch.agent.services import Services
from concur_batch.agent.spec import Ending
from concur_batch.agent.turn import Act, Turn
from concur_batch.engine.protocol import FinishReason, Generation
from tools_env.spec import Session, ToolResult

T = TypeVar("T")

# Above this many characters an observation is tokenized in a thread: 1,000 agents share one event loop.
_INLINE_CHARACTERS = 500
# A disk may have room again at any time; the agent waits for it.
_SAVE_AGAIN_SECONDS = 1.0
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
        if conversation is None or generation.message is None:
            generation, text = await super()._read(generation)
            self._action = read_text(services, text, generation.finish_reason)
            return generation, text
        pieces, self._action = conversation.hear(generation.message, generation.finish_reason)
        text = "".join(piece.text for piece in pieces)
        ids = await _encoded(services, len(text), encode_pieces, services.tokenizer, pieces)
        return replace(generation, output_ids=ids), text

    async def _act(self, generation: Generation, bound: Bound) -> Act:
        services, attempt, action = self._services, self._attempt, self._action
        calls: Sequence[Call] = action.calls if isinstance(action, Calls) else ()
        await self._declare(calls)
        started_seconds = services.clock()
        exchanges, rows = await self._execute(calls)
        queue_seconds = sum(result.queue_seconds for _, result in exchanges)
        seconds = services.clock() - started_seconds - queue_seconds
        mark = await self._save()
        ending, messages = consequence(attempt, action, exchanges, bound)
        if messages:
            await observe(attempt, messages)
        return Act(_NAMES[type(action)], ending, rows, seconds, queue_seconds, mark)

    async def _declare(self, calls: Sequence[Call]) -> None:
        """Make durable which calls begin now that may have effects: they may not run ahead of all record."""
        services, attempt = self._services, self._attempt
        effective = {spec.name for spec in services.specs if spec.has_effects}
        intended = [(index, call) for index, call in enumerate(calls) if call.name in effective]
        if intended:
            turn = attempt.tally.turns
            await services.intents.declare(
                attempt.place, turn, intent_row(attempt.key, turn, intended, services.clock())
            )

    async def _execute(self, calls: Sequence[Call]) -> tuple[list[tuple[Call, ToolResult]], list[Row]]:
        """Run the calls in the order the model wrote them: they share a workspace."""
        attempt = self._attempt
        exchanges: list[tuple[Call, ToolResult]] = []
        rows: list[Row] = []
        for index, call in enumerate(calls):
            started_seconds = self._services.clock()
            result = await self._session.call(call.name, call.arguments)
            if result.status == "crashed":
                raise SandboxFailed(result.output)
            exchanges.append((call, result))
            rows.append(tool_row(attempt.key, attempt.tally.turns, index, call, result, started_seconds))
        return exchanges, rows

    async def _save(self) -> str:
        """Make durable how the tools are now, before the turn's rows can be: waits where there is no room for it."""
        attempt, troubles = self._attempt, self._services.troubles
        try:
            while True:
                try:
                    return await self._session.save(attempt.settled_mark())
                except OSError as error:
                    reason = error.strerror or str(error)
                    troubles[attempt.place] = f"the workspace of {attempt.spec.agent_id} cannot be saved: {reason}"
                    await asyncio.sleep(_SAVE_AGAIN_SECONDS)
        finally:
            troubles.pop(attempt.place, None)


def read_text(services: Services, text: str, finish_reason: FinishReason) -> Action:
    """The action of a turn's text."""
    thinking = services.tokenizer.template.opens_thinking
    return parse(services.config.format, text, finish_reason, services.specs, thinking=thinking)


def consequence(
    attempt: Attempt, action: Action, exchanges: Sequence[tuple[Call, ToolResult]], bound: Bound
) -> tuple[Ending | None, list[dict[str, Any]]]:
    """Whether the turn ends the agent, and the observation messages if it does not; `exchanges` are the action's calls
    with what they returned, `bound` is what the output would be cut by."""
    config, conversation = attempt.services.config, attempt.conversation
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
    answers = [result.answer for _, result in exchanges if result.answer is not None]
    if answers:
        return Ending("finished", "submit", answer=answers[-1]), []
    if conversation is not None:
        conversation.observe(exchanges)
    return None, observation_messages(exchanges, config.format, attempt.services.tokenizer.template)


async def observe(attempt: Attempt, messages: list[dict[str, Any]]) -> None:
    """Append an observation to the history."""
    transcript = attempt.transcript
    characters = sum(len(str(message["content"])) for message in messages)
    transcript.append(await _encoded(attempt.services, characters, transcript.encode_observation, messages))


async def _encoded(services: Services, characters: int, encode: Callable[..., T], *arguments: Any) -> T:
    """`encode(*arguments)`, in a thread where it is long."""
    if characters <= _INLINE_CHARACTERS:
        return encode(*arguments)
    return await asyncio.get_running_loop().run_in_executor(services.encoder, encode, *arguments)
