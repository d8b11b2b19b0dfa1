"""A host's side of admission: which of its agents may generate now.

An agent that holds a grant passes without a message to anybody; one that does not reports once and waits. The
controller's permits arrive as pushes, in any order; an agent's epoch tells which one is newest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from concur_batch.control.window import Membership, Permit, State


class Draining(Exception):
    """The run is stopping: the agent must not start another turn."""


class Event(NamedTuple):
    """What a host tells the controller of one agent: arrive, boundary (with the epoch obeyed), yield or release."""

    kind: str
    agent: str
    epoch: int = 0


@dataclass(slots=True)
class Waits:
    """Seconds that one `enter` waited, by why."""

    pending_seconds: float = 0.0
    paused_seconds: float = 0.0
    queue_seconds: float = 0.0


@dataclass(slots=True)
class _Entry:
    state: State = State.PENDING
    epoch: int = 0
    allowed: bool = False
    admitted: bool = False
    waiter: asyncio.Future[None] | None = None


class Gate:
    """`report` queues an event for the controller; with `per_generation` a grant lasts for one generation."""

    def __init__(self, report: Callable[[Event], object], *, per_generation: bool) -> None:
        self._report = report
        self._per_generation = per_generation
        self._entries: dict[str, _Entry] = {}
        self._changed: set[str] = set()
        self.draining = False

    async def enter(self, agent: str) -> Waits:
        """Pass to the next generation, or wait for a grant; raises Draining once the run is stopping."""
        waits = Waits()
        entry = self._entries.get(agent)
        if entry is None:
            entry = self._entries[agent] = _Entry()
            self._report(Event("arrive", agent))
        elif self._per_generation:
            entry.state = State.QUEUED
            self._report(Event("arrive", agent))
        elif not entry.allowed:
            entry.state = State.PAUSED
            self._report(Event("boundary", agent, entry.epoch))
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
                    waits.pending_seconds += waited
                case State.PAUSED:
                    waits.paused_seconds += waited
                case _:
                    waits.queue_seconds += waited
        if self.draining:
            raise Draining
        entry.state, entry.admitted = State.ACTIVE, True
        self._changed.add(agent)
        return waits

    def generated(self, agent: str) -> None:
        """The agent's generation ended: its tools run now. Under a request cap its place is free."""
        entry = self._entries[agent]
        entry.state = State.TOOL_WAIT
        if self._per_generation:
            entry.allowed = False
            self._report(Event("yield", agent))
        else:
            self._changed.add(agent)

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
            if entry.waiter is None:
                continue
            if not permit.allowed:
                # It waits already, and its last report is void by now: this mark takes effect at once.
                entry.state = State.PAUSED
                self._report(Event("boundary", permit.agent, permit.epoch))
            elif not entry.waiter.done():
                entry.waiter.set_result(None)

    def drain(self) -> None:
        """Let nobody pass any more; those who wait get Draining."""
        self.draining = True
        for entry in self._entries.values():
            if entry.waiter is not None and not entry.waiter.done():
                entry.waiter.set_result(None)

    def take_changes(self) -> list[tuple[str, str]]:
        """(agent, state) of place holders whose state changed since the last call."""
        changed, self._changed = self._changed, set()
        known = ((agent, self._entries[agent].state) for agent in changed if agent in self._entries)
        return [(agent, state.value) for agent, state in known if state in (State.ACTIVE, State.TOOL_WAIT)]

    def census(self) -> list[Membership]:
        """All agents here, in order of arrival, for a controller that starts anew."""
        return [
            Membership(agent, entry.state, entry.epoch, entry.admitted, self._holds_place(entry))
            for agent, entry in self._entries.items()
        ]

    def _holds_place(self, entry: _Entry) -> bool:
        if entry.allowed or entry.state is State.ACTIVE:
            return True
        return entry.state is State.TOOL_WAIT and not self._per_generation
