"""One attempt of one agent, from its first wish to generate to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from concur_batch.agent.acting import ActingTurn, SandboxFailed
from concur_batch.agent.attempt import Attempt, DeadlinePassed
from concur_batch.agent.claim import Pass
from concur_batch.agent.gate import Draining
from concur_batch.agent.prompting import initial_messages
from concur_batch.agent.recall import RecordedTurn, recall
from concur_batch.agent.replay import FORCED_LENGTH, ReplayedTurn
from concur_batch.agent.rows import Row, agent_row
from concur_batch.agent.services import Services
from concur_batch.agent.spec import AgentSpec, AnswerCheck, CommandCheck, Ending
from concur_batch.agent.tally import Tally
from concur_batch.agent.turn import Turn
from concur_batch.agent.verdict import judge
from concur_batch.engine.protocol import EngineError
from concur_batch.workload.schema import Sampling
from tools_env.bubblewrap import SandboxUnavailable
from tools_env.spec import Session, StateLost
from tools_env.verify import NoRoom

# Above this many characters a first prompt is tokenized in a thread: there is one an agent, and what prompts begin with
# alike is tokenized once.
_INLINE_PROMPT_CHARACTERS = 10_000
# A disk may have room again at any time.
_JUDGE_AGAIN_SECONDS = 1.0


class Rollout:
    """Runs one attempt: turn after turn, until one of them or a limit ends it. It goes on behind those of its turns
    that are `recorded`."""

    def __init__(self, spec: AgentSpec, services: Services, recorded: Sequence[RecordedTurn] = ()) -> None:
        self.spec = spec
        self._services = services
        self._attempt = Attempt(spec, services)
        self._sampling = sampling_parameters(services.config.sampling, forced=spec.trajectory is not None)
        self._turn: Turn | None = None  # the one under way
        self._session: Session | None = None
        self._recorded = recorded
        self._started_seconds = recorded[0].row["started_seconds"] if recorded else services.clock()
        self._ended_seconds: float | None = None  # its turns; a check may follow
        self._cancelled = False

    @property
    def tally(self) -> Tally:
        """What it has done so far; grows while it runs."""
        return self._attempt.tally

    async def run(self) -> tuple[Ending, Row]:
        """Run to the end; returns it and the agent's row, whose `final` the caller decides. Raises Draining."""
        services, place = self._services, self._attempt.place
        try:
            try:
                ending = await self._turns()
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not self._cancelled or task is None:
                    raise
                task.uncancel()
                ending = Ending("cancelled", "cancelled", "cancelled", "by the operator")
            except DeadlinePassed:
                ending = self._attempt.budget.past_deadline()
            except (EngineError, SandboxUnavailable, SandboxFailed, StateLost) as error:
                ending = Ending("failed", type(error).__name__, "infrastructure", str(error))
            except Draining:
                raise
            except Exception as error:  # a fault of ours, or one that nobody foresaw: only this agent notices
                ending = Ending("failed", "error", "infrastructure", f"{type(error).__name__}: {error}")
            self._ended_seconds = services.clock()
            services.gate.leave(place)  # before the check: it needs no place at the engine
            row = self._row(ending)
            if ending.status not in ("failed", "cancelled") and self.spec.check is not None:
                row |= await self._judged(self.spec.check, ending.answer)
            return ending, row
        finally:
            services.gate.leave(place)
            if self._attempt.session is not None:  # at every engine: it may have moved
                for pool in services.pools.values():
                    await pool.engine.end_session(self._attempt.session)
            if self._session is not None:
                with contextlib.suppress(Exception):  # a workspace that stays behind is swept at the run's end
                    await self._session.close(keep=services.config.keep_workspaces)

    def cancel(self, task: asyncio.Task[None]) -> bool:
        """End the agent, which runs in `task`, with status `cancelled`; False if it is at its end already."""
        if self._ended_seconds is not None or self._cancelled:
            return False
        self._cancelled = True
        task.cancel()
        return True

    def standing(self) -> dict[str, Any]:
        """What the agent does now, for how many seconds, and how far it is.

        `active_seconds` are those of generations and tools that have ended.
        """
        standing, seconds, pool = self._services.gate.standing(self._attempt.place)
        state = standing.value
        if self._ended_seconds is not None:  # it has left the gate
            state, seconds = "checking", self._services.clock() - self._ended_seconds
        # The tally grows at a turn's end only.
        of_turn_seconds = 0.0 if self._turn is None else self._turn.generation_seconds
        return {
            "agent_id": self.spec.agent_id,
            "attempt": self.spec.attempt,
            "state": state,
            "state_seconds": seconds,
            "pool": pool,
            "turns": self.tally.turns,
            "context_tokens": self._attempt.transcript.tokens,
            "pauses": self.tally.pauses,
            "running_seconds": self._services.clock() - self._started_seconds,
            "active_seconds": self.tally.active_seconds + of_turn_seconds,
        }

    async def _turns(self) -> Ending:
        services, attempt = self._services, self._attempt
        await services.turnstile.enter()
        ending = await self._start()
        if ending is not None:  # its last turn is on record, and its end is not
            await self._workspace()
            return ending
        while True:
            ending = attempt.over_limit()
            if ending is not None:
                return ending
            wanted_seconds = services.clock()
            leave = await attempt.enter()
            turn = await self._next_turn(leave, wanted_seconds)
            # A pause may have outlasted the wall clock's limit.
            ending = attempt.over_limit()
            if ending is not None:
                return ending
            self._turn = turn
            ending = await self._turn.run()
            self._turn = None
            if ending is not None:
                return ending

    async def _next_turn(self, leave: Pass, wanted_seconds: float) -> Turn:
        trajectory = self.spec.trajectory
        if trajectory is not None:
            return ReplayedTurn(self._attempt, trajectory, leave, wanted_seconds, self._sampling)
        return ActingTurn(self._attempt, await self._workspace(), leave, wanted_seconds, self._sampling)

    async def _start(self) -> Ending | None:
        """Begin the history with the first prompt, or with the turns that are on record; the ending, if the last of
        those is the agent's."""
        transcript, trajectory, recorded = self._attempt.transcript, self.spec.trajectory, self._recorded
        self._recorded = ()
        if trajectory is not None:
            if recorded:
                return await recall(self._attempt, recorded)
            transcript.extend(trajectory.steps[0].new_ids)
            return None
        services = self._services
        messages, tools = initial_messages(
            services.config.system,
            self.spec.prompt,
            services.specs,
            services.config.format,
            services.tokenizer.template,
        )
        if recorded:
            transcript.begin(tools)
            return await recall(self._attempt, recorded)
        if len(self.spec.prompt) > _INLINE_PROMPT_CHARACTERS:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(services.encoder, transcript.start, messages, tools)
        else:
            transcript.start(messages, tools)
        return None

    async def _workspace(self) -> Session:
        if self._session is None:
            mark = self._attempt.recorded_mark
            self._session = await self._services.tools.open(self.spec.agent_id, self.spec.files, mark)
        return self._session

    async def _judged(self, check: CommandCheck | AnswerCheck, answer: str | None) -> Row:
        """The reward columns; waits where there is no room for the check."""
        place, troubles = self._attempt.place, self._services.troubles
        try:
            while True:
                try:
                    return await judge(check, answer, self._workspace)
                except NoRoom as error:
                    troubles[place] = f"the check of {self.spec.agent_id} cannot be run: {error}"
                    await asyncio.sleep(_JUDGE_AGAIN_SECONDS)
        finally:
            troubles.pop(place, None)

    def _row(self, ending: Ending) -> Row:
        attempt = self._attempt
        return agent_row(attempt.key, ending, attempt.tally) | {
            "prompt": self.spec.prompt if self.spec.trajectory is None else None,
            "seed": self.spec.seed,
            "context_tokens": attempt.transcript.tokens,
            "started_seconds": self._started_seconds,
            "admitted_seconds": attempt.admitted_seconds,
            "ended_seconds": self._services.clock(),
            "ended_at": datetime.now(UTC).isoformat(timespec="microseconds"),
            "host": self._services.config.name,
            "replica": attempt.pool,
        }


def sampling_parameters(sampling: Sampling, *, forced: bool = False) -> dict[str, Any]:
    """The engine's sampling parameters for a workload's; `extra` overrides. `forced`: only its limit ends an output."""
    parameters: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    if forced:
        return {**parameters, **sampling.extra, **FORCED_LENGTH}
    if sampling.stop:
        parameters["stop"] = sampling.stop
    return parameters | sampling.extra
