"""A host's side of admission: which of its agents may generate now, and in which KV pool.

An agent that holds a grant passes without a message to anybody; one that does not reports once and waits. The
controller's permits arrive as pushes, in any order; an agent's epoch tells which one is newest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from concur_batch.control.member import Beat, Event, Membership, Permit, State, Traits


class Draining(Exception):
    """The run is stopping: the agent must not start another turn."""


class Wish(NamedTuple):
    """What an agent wants to generate on: the length of its history, and how much of that its pool has not seen."""

    context_tokens: int
    new_tokens: int


@dataclass(slots=True)
class Pass:
    """Leave to generate in `pool`, and the seconds that it was waited for, by why."""

    pool: str = ""
    pending_seconds: float = 0.0
    paused_seconds: float = 0.0
    queue_seconds: float = 0.0

    @property
    def waited(self) -> bool:
        """Whether the agent was paused before it."""
        return self.paused_seconds > 0.0


@dataclass(slots=True)
class _Entry:
    traits: Traits
    state: State = State.PENDING
    since_seconds: float = 0.0
    epoch: int = 0
    allowed: bool = False
    admitted: bool = False
    down: bool = False  # its pool did not answer
    pool: str | None = None
    context_tokens: int = 0
    waiter: asyncio.Future[None] | None = None


class Gate:
    """`report` queues an event for the controller; with `per_generation` a grant lasts for one generation. Prompts with
    more new tokens than `long_request_tokens` ask again even with a grant."""

    def __init__(
        self, report: Callable[[Event], object], *, per_generation: bool = False, long_request_tokens: int | None = None
    ) -> None:
        self._report = report
        self._per_generation = per_generation
        self._long_request_tokens = long_request_tokens
        self._entries: dict[str, _Entry] = {}
        self._changed: set[str] = set()
        self.draining = False

    async def enter(self, agent: str, wish: Wish, traits: Traits) -> Pass:
        """Pass to the next generation, or wait for a grant; raises Draining once the run is stopping.

        An agent has one generation at a time, and counts as one: another call meanwhile raises RuntimeError.
        """
        leave = Pass()
        entry = self._ask(agent, wish, traits)
        while not entry.allowed and not self.draining:
            began = time.monotonic()
            entry.waiter = asyncio.get_running_loop().create_future()
            try:
                await entry.waiter
            finally:
                entry.waiter = None
            waited = time.monotonic() - began
            match entry.state:
                case State.PENDING:
                    leave.pending_seconds += waited
                case State.PAUSED:
                    leave.paused_seconds += waited
                case _:
                    leave.queue_seconds += waited
        if self.draining:
            raise Draining
        self._set_state(entry, State.ACTIVE)
        self._changed.add(agent)
        leave.pool = entry.pool or ""
        return leave

    def _ask(self, agent: str, wish: Wish, traits: Traits) -> _Entry:
        """Report what the agent needs, if it needs anything."""
        entry = self._entries.get(agent)
        if entry is not None and (entry.waiter is not None or (entry.state is State.ACTIVE and not entry.down)):
            raise RuntimeError(f"{agent} asks for a second generation before its first has ended")
        if entry is None:
            entry = self._entries[agent] = _Entry(traits, since_seconds=time.monotonic())
            self._report(Event("arrive", agent, 0, wish.context_tokens, traits))
        elif entry.down:
            # A permit that came since it was found down is not to be used: it is of that pool.
            entry.allowed, entry.down = False, False
            self._report(Event("down", agent, entry.epoch, wish.context_tokens))
            self._set_state(entry, State.PAUSED)
        elif self._per_generation:
            self._report(Event("arrive", agent, entry.epoch, wish.context_tokens, traits))
            self._set_state(entry, State.QUEUED)
        elif not entry.allowed:
            self._report(Event("boundary", agent, entry.epoch, wish.context_tokens))
            self._set_state(entry, State.PAUSED)
        elif self._long_request_tokens is not None and wish.new_tokens > self._long_request_tokens:
            entry.allowed = False
            self._report(Event("large", agent, entry.epoch, wish.context_tokens))
            self._set_state(entry, State.PAUSED)
        entry.context_tokens = wish.context_tokens
        return entry

    def generated(self, agent: str, context_tokens: int) -> None:
        """The agent's generation ended: its tools run now. Under a request cap its place is free."""
        entry = self._entries[agent]
        entry.context_tokens = context_tokens
        self._set_state(entry, State.TOOL_WAIT)
        if self._per_generation:
            entry.allowed = False
            self._report(Event("yield", agent, entry.epoch))
        else:
            self._changed.add(agent)

    def found_down(self, agent: str) -> None:
        """The agent's pool did not answer: it gives its place back and asks for another when it enters next."""
        entry = self._entries[agent]
        entry.allowed, entry.down = False, True

    def leave(self, agent: str) -> None:
        """The agent ended, whichever way: its place is free. Does nothing for one that never entered."""
        if self._entries.pop(agent, None) is not None:
            self._changed.discard(agent)
            self._report(Event("release", agent))

    def apply(self, permits: list[Permit]) -> None:
        """Take over the controller's permits; older ones than the agent has seen are void."""
        for permit in permits:
            entry = self._entries.get(permit.agent)
            if entry is None or permit.epoch <= entry.epoch:
                continue
            entry.epoch, entry.allowed = permit.epoch, permit.allowed
            if permit.allowed:
                entry.pool, entry.admitted = permit.pool, True
            if entry.waiter is None:
                continue
            if not permit.allowed:
                # It waits already, and its last report is void by now: this mark takes effect at once.
                self._set_state(entry, State.PAUSED)
                self._report(Event("boundary", permit.agent, permit.epoch, entry.context_tokens))
            elif not entry.waiter.done():
                entry.waiter.set_result(None)

    def drain(self) -> None:
        """Let nobody pass any more; those who wait get Draining."""
        self.draining = True
        for entry in self._entries.values():
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_result(None)

    def take_beats(self) -> list[Beat]:
        """Place holders whose state changed since the last call, as they are now."""
        changed, self._changed = self._changed, set()
        known = ((agent, self._entries[agent]) for agent in changed if agent in self._entries)
        holding = (State.ACTIVE, State.TOOL_WAIT)
        return [Beat(agent, entry.state, entry.context_tokens) for agent, entry in known if entry.state in holding]

    def census(self) -> list[Membership]:
        """All agents here, in order of arrival, for a controller that starts anew."""
        return [
            Membership(
                agent,
                # One with a permit that has not woken yet does not wait any more.
                State.ACTIVE if entry.allowed and entry.waiter is not None else entry.state,
                entry.epoch,
                entry.admitted,
                self._holds_place(entry),
                entry.pool,
                entry.context_tokens,
                entry.traits,
            )
            for agent, entry in self._entries.items()
        ]

    def standing(self, agent: str) -> tuple[State, float, str | None]:
        """The agent's state, for how many seconds, and its pool; PENDING for one that has not asked yet."""
        entry = self._entries.get(agent)
        if entry is None:
            return State.PENDING, 0.0, None
        return entry.state, time.monotonic() - entry.since_seconds, entry.pool

    @staticmethod
    def _set_state(entry: _Entry, state: State) -> None:
        entry.state, entry.since_seconds = state, time.monotonic()

    def _holds_place(self, entry: _Entry) -> bool:
        if entry.allowed or entry.state is State.ACTIVE:
            return True
        return entry.state is State.TOOL_WAIT and not self._per_generation
