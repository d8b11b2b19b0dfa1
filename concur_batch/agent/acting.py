"""A turn in which the model acts: its text is parsed, its calls are executed, what they return is observed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from concur_batch.agent.actions import Action, Answer, Call, Calls, Malformed, Truncated, parse
from concur_batch.agent.attempt import Attempt
from concur_batch.agent.claim import Pass
from concur_batch.agent.limits import Bound, cut
from concur_batch.agent.prompting import observation_messages, retry_messages
from concur_batch.agent.rows import Row, tool_row
from concur_batch.agent.spec import Ending
from concur_batch.agent.turn import Act, Turn
from concur_batch.engine.protocol import Generation
from tools_env.spec import Session, ToolResult

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

    async def _act(self, generation: Generation, bound: Bound, text: str) -> Act:
        services = self._services
        thinking = services.tokenizer.template.opens_thinking
        action = parse(services.config.format, text, generation.finish_reason, services.specs, thinking=thinking)
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
