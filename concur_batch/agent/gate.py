"""A host's side of admission: which of its agents may generate now, and in which KV pool.

An agent that holds a grant passes without a message to anybody; one that does not reports once and waits. The
controller's permits arrive as pushes, in any order; an agent's epoch tells which one is newest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from concur_batch.agent.claim import Claim, Pass, Refusal, Wish, longest_seconds
from concur_batch.control.member import Beat, Event, Membership, Permit, State, Traits
from concur_batch.control.rules import Rules


class Draining(Exception):
    """The run is stopping: the agent must not start another turn."""


class Gate:
    """The claims of a host's agents, and those who wait. `report` queues an event for the controller."""

    def __init__(self, report: Callable[[Event], object], rules: Rules) -> None:
        self._report = report
        self._rules = rules
        self._claims: dict[str, Claim] = {}
        self._waiters: dict[str, asyncio.Future[None]] = {}
        self._changed: dict[str, None] = {}  # in order, so that the same turns make the same beats
        self.draining = False

    async def enter(self, agent: str, wish: Wish, traits: Traits) -> Pass:
        """Pass to the next generation, or wait for a grant; raises Draining once the run is stopping.

        An agent has one generation at a time, and counts as one: another call meanwhile raises RuntimeError.
        """
        claim = self._claims.setdefault(agent, Claim(agent, traits))
        self._tell(claim.asks(wish, self._rules, time.monotonic()))
        while not claim.allowed and not self.draining:
            waiter = self._waiters[agent] = asyncio.get_running_loop().create_future()
            try:
                await waiter
            finally:
                del self._waiters[agent]
        if self.draining:
            raise Draining
        self._changed[agent] = None
        return claim.passes(time.monotonic())

    def generated(self, agent: str, context_tokens: int) -> None:
        """The agent's generation ended: its tools run now. Under a request cap its place is free."""
        event = self._claims[agent].generated(context_tokens, self._rules, time.monotonic())
        self._tell(event)
        if event is None:
            self._changed[agent] = None

    def refuse(self, agent: str, why: Refusal) -> None:
        """The agent's engine does not take its generation: it asks for another pool when it enters next."""
        self._claims[agent].refuse(why)

    def leave(self, agent: str) -> None:
        """The agent ended, whichever way: its place is free. Does nothing for one that never entered."""
        if self._claims.pop(agent, None) is not None:
            self._changed.pop(agent, None)
            self._report(Event("release", agent))

    def apply(self, permits: Iterable[Permit]) -> None:
        """Take over the controller's permits; older ones than the agent has seen are void."""
        now_seconds = time.monotonic()
        for permit in permits:
            claim = self._claims.get(permit.agent)
            if claim is not None:
                self._tell(claim.takes(permit, now_seconds))
                if claim.allowed:
                    self._wake(permit.agent)

    def drain(self) -> None:
        """Let nobody pass any more; those who wait get Draining."""
        self.draining = True
        for agent in self._waiters:
            self._wake(agent)

    def take_beats(self) -> list[Beat]:
        """Place holders whose state changed since the last call, as they are now."""
        changed, self._changed = self._changed, {}
        beats = [self._claims[agent].beat() for agent in changed if agent in self._claims]
        return [beat for beat in beats if beat is not None]

    def return_beats(self, beats: Sequence[Beat]) -> None:
        """These could not be told: the next call has their agents again, as they are then."""
        self._changed |= dict.fromkeys(beat.agent for beat in beats)

    def longest_seconds(self) -> dict[str, float]:
        """How long the longest generation that is under way has taken so far, by pool."""
        return longest_seconds(self._claims.values(), time.monotonic())

    def census(self) -> list[Membership]:
        """All agents here, in order of arrival, for a controller that starts anew."""
        return [claim.membership(self._rules) for claim in self._claims.values()]

    def standing(self, agent: str) -> tuple[State, float, str | None]:
        """The agent's state, for how many seconds, and its pool; PENDING for one that has not asked yet."""
        claim = self._claims.get(agent)
        if claim is None:
            return State.PENDING, 0.0, None
        return claim.state, time.monotonic() - claim.since_seconds, claim.pool

    def _tell(self, event: Event | None) -> None:
        if event is not None:
            self._report(event)

    def _wake(self, agent: str) -> None:
        waiter = self._waiters.get(agent)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
