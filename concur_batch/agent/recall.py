"""An attempt that goes on in another process: brought to where its recorded turns have left it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import orjson

from concur_batch.agent.acting import consequence, observe, read_text
from concur_batch.agent.attempt import Attempt
from concur_batch.agent.formats.action import Call
from concur_batch.agent.limits import Bound
from concur_batch.agent.replay import follow
from concur_batch.agent.rows import Row, recorded_call
from concur_batch.agent.spec import AgentSpec, Ending
from concur_batch.agent.tally import SUMMED
from concur_batch.trace.attempts import Key, rows_of_attempts
from concur_batch.trace.reading import Run
from tools_env.spec import ToolResult

_COLUMNS = (
    *("agent_id", "attempt", "turn", "replica", "started_seconds", "generation_started_seconds", "input_delta_ids"),
    *("output_ids", "output_text", "output_message", "finish_reason", "action", "tools_mark", "context_tokens"),
    *SUMMED,
)


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A turn that is on record: its row in `turns`, and its calls with what they returned."""

    row: Row
    calls: list[tuple[Call, ToolResult]]


def recorded_turns(run: Run, agents: Collection[AgentSpec]) -> dict[str, list[RecordedTurn]]:
    """The turns of these agents' attempts by agent, from the first on. Raises TraceError."""
    attempts: list[Key] = [(agent.agent_id, agent.attempt) for agent in agents]
    turns = rows_of_attempts(run, "turns", _COLUMNS, attempts)
    tools = rows_of_attempts(run, "tools", None, attempts)
    calls: dict[tuple[str, int], list[tuple[Call, ToolResult]]] = {}
    for (name, _), rows in tools.items():
        for row in rows:
            calls.setdefault((name, row["turn"]), []).append(recorded_call(row))
    return {
        name: [RecordedTurn(dict(row), calls.get((name, row["turn"]), [])) for row in rows]
        for (name, _), rows in turns.items()
    }


async def recall(attempt: Attempt, turns: Sequence[RecordedTurn]) -> Ending | None:
    """Bring a new attempt, whose transcript has begun, to the end of these turns; the ending, if the last one is the
    agent's.

    The history is the recorded ids, whatever the tokenizer would make of the texts now. Only what followed the last
    turn stands in no later one's ids: it is made again from the recorded results.
    """
    transcript, pools = attempt.transcript, attempt.services.pools
    attempt.admitted_seconds = turns[0].row["generation_started_seconds"]
    ending: Ending | None = None
    for turn in turns:
        row = turn.row
        last = turn is turns[-1]
        transcript.extend(row["input_delta_ids"])
        attempt.pool = row["replica"]
        pool = pools.get(attempt.pool)
        bound = attempt.budget.next_output(attempt.tally, transcript.tokens, None if pool is None else pool.tokens)
        told = row["output_message"] is not None
        transcript.generated(row["output_ids"], row["context_tokens"] if told else None)
        ending = await _follow(attempt, turn, bound, last=last)
        attempt.tally.add(row, len(turn.calls))
        attempt.tally.pauses += row["paused_seconds"] > 0
        await asyncio.sleep(0)  # others are on this loop
    if turns[-1].row["tools_mark"] is not None:
        attempt.recorded_mark = turns[-1].row["tools_mark"]
    return ending


async def _follow(attempt: Attempt, turn: RecordedTurn, bound: Bound, *, last: bool) -> Ending | None:
    """What followed from a turn."""
    row, spec = turn.row, attempt.spec
    if spec.trajectory is not None:
        truncated = row["action"] == "truncated"
        return follow(attempt, spec.trajectory, row["turn"], bound if truncated else None, observed=last)
    if attempt.conversation is not None:
        _, action = attempt.conversation.hear(orjson.loads(row["output_message"]), row["finish_reason"])
    else:
        action = read_text(attempt.services, row["output_text"], row["finish_reason"])
    ending, messages = consequence(attempt, action, turn.calls, bound)
    if last and messages:
        await observe(attempt, messages)
    return ending
