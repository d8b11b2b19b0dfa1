"""What the turns of one attempt of an agent share: its history and sums, its limits, and its way through the gate."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque

from concur_batch.agent.claim import Pass, Wish
from concur_batch.agent.conversation import Conversation
from concur_batch.agent.services import Services
from concur_batch.agent.spec import AgentSpec, Ending
from concur_batch.agent.tally import Tally
from concur_batch.agent.transcript import Transcript
from tools_env.snapshots import AS_OPENED


class DeadlinePassed(Exception):
    """The agent's deadline has come while it waited for leave to generate."""


class Attempt:
    """`tally` grows while it runs. `conversation` stands beside the transcript where the engine takes messages.

    `place` is its name at the gate, `pool` where its last leave was for, `rid` what the names of its requests begin
    with, `session` by which an engine that heeds it knows whose they are, `key` the columns that begin its rows.
    `recorded_mark` says how the tools were after the newest turn that is known to be on record."""

    def __init__(self, spec: AgentSpec, services: Services) -> None:
        self.spec = spec
        self.services = services
        self.tally = Tally()
        self.transcript = Transcript(services.tokenizer)
        config = services.config
        self.conversation = (
            Conversation(config.system, spec.prompt, services.specs, config.format, services.tokenizer.template)
            if config.chats
            else None
        )
        self.budget = services.config.budget(spec.traits.deadline_seconds)
        if spec.trajectory is not None:
            self.budget = self.budget.without_limits(spec.trajectory.longest_output_tokens)
        self.malformed_in_a_row = 0
        self.recorded_mark = AS_OPENED
        self._marks: deque[tuple[int, str]] = deque()  # of turns that may not be on record yet
        self.pool = ""
        self.admitted_seconds: float | None = None
        # Each attempt asks for a place of its own: no permit of the one before can be taken for its own.
        self.place = f"{spec.agent_id}#{spec.attempt}"
        # Of a fixed width, since engines abort by rid prefix; unique among the runs that share an engine.
        digest = hashlib.blake2b(f"{services.config.run}\0{spec.agent_id}".encode(), digest_size=8).hexdigest()
        self.rid = f"{digest}-{spec.attempt:02d}"
        self.session = self.rid if services.config.sessions else None
        self.key = {
            "agent_id": spec.agent_id,
            "task_id": spec.task_id,
            "sample": spec.sample,
            "attempt": spec.attempt,
        }

    def record(self, turn: int, rows: bytes, mark: str | None) -> None:
        """Hand a turn's rows to the recorder, which left the tools as the mark says."""
        number = self.services.records.put(rows)
        self.services.intents.recorded(self.place, turn, number)
        if mark is not None:
            self._marks.append((number, mark))

    def settled_mark(self) -> str:
        """The mark of the newest turn that is on record: what was saved before it is not needed any more."""
        while self._marks and self.services.records.is_sent(self._marks[0][0]):
            self.recorded_mark = self._marks.popleft()[1]
        return self.recorded_mark

    async def enter(self, least_tokens: int = 0) -> Pass:
        """Wait for leave to generate. The controller is told of at least `least_tokens` of history.

        Raises DeadlinePassed, or Draining where the run is being stopped.
        """
        services, deadline_seconds = self.services, self.budget.deadline_seconds
        history_tokens = self.transcript.tokens
        home = services.pools.get(self.pool)
        wish = Wish(
            max(history_tokens, least_tokens),
            history_tokens - self.transcript.known_tokens,
            outgrown=home is not None and home.tokens is not None and history_tokens >= home.tokens,
            shared_tokens=services.beginning.common_with(self.transcript.ids),
        )
        left_seconds = None if deadline_seconds is None else deadline_seconds - services.clock()
        try:
            async with asyncio.timeout(left_seconds):
                await services.records.room()
                leave = await services.gate.enter(self.place, wish, self.spec.traits)
        except TimeoutError:
            raise DeadlinePassed from None
        await services.turnstile.enter()
        self.tally.pauses += leave.paused
        self.pool = leave.pool
        if self.admitted_seconds is None:
            self.admitted_seconds = services.clock()
        return leave

    def over_limit(self) -> Ending | None:
        """The ending, where a limit is reached."""
        services = self.services
        return self.budget.over(
            self.tally, self.transcript.tokens, services.largest_tokens, self.admitted_seconds, services.clock()
        )
