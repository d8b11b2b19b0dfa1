"""A turn of a trajectory that is decided beforehand: as many tokens as it says, then its tools' time, then its
observation. The history goes on with the ids that the engine makes now: its cache does the work of a real run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from concur_batch.agent.attempt import Attempt
from concur_batch.agent.claim import Pass
from concur_batch.agent.formats.action import Call
from concur_batch.agent.limits import Bound, cut
from concur_batch.agent.rows import tool_row
from concur_batch.agent.services import Pool
from concur_batch.agent.spec import Ending
from concur_batch.agent.trajectory import Trajectory
from concur_batch.agent.turn import Act, Turn
from concur_batch.engine.protocol import EngineError, Generation

# SGLang and vLLM know it by the same name: the output ends at its limit only.
FORCED_LENGTH: Mapping[str, Any] = {"ignore_eos": True}


class ReplayedTurn(Turn):
    """See Turn. The attempt's tally says how far the trajectory is."""

    def __init__(
        self, attempt: Attempt, trajectory: Trajectory, leave: Pass, wanted_seconds: float, sampling: Mapping[str, Any]
    ) -> None:
        super().__init__(attempt, leave, wanted_seconds, sampling)
        self._trajectory = trajectory
        self._step = trajectory.steps[attempt.tally.turns]

    def _bound(self, pool: Pool) -> Bound:
        bound = super()._bound(pool)
        return bound if bound.tokens < self._step.output_tokens else Bound(self._step.output_tokens, "replay")

    async def _act(self, generation: Generation, bound: Bound) -> Act:
        attempt, services = self._attempt, self._services
        if bound.name != "replay":  # the context or the pool has no room for the rest
            ending = follow(attempt, self._trajectory, attempt.tally.turns, bound, observed=True)
            return Act("truncated", ending)
        if len(generation.output_ids) != self._step.output_tokens:
            made = f"{len(generation.output_ids)} tokens where {self._step.output_tokens} were due"
            raise EngineError(f"the engine made {made}: it does not take a forced length")
        number = attempt.tally.turns
        rows, waited_seconds = [], 0.0
        for index, exchange in enumerate(self._step.exchanges):
            started_seconds = services.clock()
            await asyncio.sleep(exchange.result.seconds)
            call = Call(exchange.name, dict(exchange.arguments))
            rows.append(tool_row(attempt.key, number, index, call, exchange.result, started_seconds))
            waited_seconds += services.clock() - started_seconds
        ending = follow(attempt, self._trajectory, number, None, observed=True)
        return Act("calls" if rows else "answer", ending, rows, waited_seconds)


def follow(
    attempt: Attempt, trajectory: Trajectory, number: int, cut_by: Bound | None, *, observed: bool
) -> Ending | None:
    """What follows from the turn of that number: the agent's ending, or the next observation, which is appended where
    it has been `observed` by now. `cut_by` is set where the output was cut."""
    if cut_by is not None:
        return cut(cut_by)
    if number + 1 == len(trajectory.steps):
        return trajectory.ending
    if observed:
        attempt.transcript.extend(trajectory.steps[number + 1].new_ids)
    return None
