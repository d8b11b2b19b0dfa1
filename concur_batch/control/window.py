"""The admission window: which agents may generate, and the life of an agent as the controller sees it.

Pure: events come in as method calls, decisions go out as permits. One object of this class drives the Ray controller
and any simulation.

Places. An agent holds a place from its admission until it ends or its pause takes effect; a tool wait keeps it. With
`per_generation` (the request cap) a place lasts for one generation only.

Pauses. When the window shrinks below the number of places held, the newest admitted agents are *marked*; each marked
agent reports back when it reaches its next boundary between a tool's end and a generation, and only then loses its
place. Marks are lifted, oldest admission first, if the window grows again before that.

Order. Paused agents are resumed before new ones are admitted; each queue is first in, first out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

# What the paper leaves open, as this window does it; a run's manifest repeats it.
CHOICES = {
    "victim_order": "newest admitted first",
    "resume_order": "paused agents before new ones, each first in, first out",
    "pause_point": "between a tool's end and the next generation",
    "after_controller_restart": "no grants until every host has told what it holds, then W = places held",
}


class State(StrEnum):
    """The life of an agent. QUEUED occurs under a request cap only: between turns, waiting for a permit."""

    PENDING = "pending"
    ACTIVE = "active"
    TOOL_WAIT = "tool_wait"
    PAUSED = "paused"
    QUEUED = "queued"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Permit:
    """Tells an agent's host whether the agent may start its next generation.

    A later epoch of the same agent overrides an earlier one, in whichever order they arrive.
    """

    agent: str
    epoch: int
    allowed: bool


@dataclass(slots=True)
class Moves:
    """What changed since the last control period."""

    admitted: int = 0
    resumed: int = 0
    paused: int = 0
    completed: int = 0


@dataclass(frozen=True, slots=True)
class Membership:
    """One agent as its host knows it, to rebuild a window from."""

    agent: str
    state: State
    epoch: int
    admitted: bool  # has ever been
    holds_place: bool


@dataclass(slots=True)
class _Member:
    state: State = State.PENDING
    epoch: int = 0
    admitted: bool = False


@dataclass(slots=True)
class Window:
    """`capacity` is the number of places, None for no bound. Closed (`granting` false) it takes events and decides
    nothing, so that a restarted controller can first learn who holds what; `resize` opens it."""

    capacity: int | None
    per_generation: bool = False
    granting: bool = True
    moves: Moves = field(default_factory=Moves)
    _members: dict[str, _Member] = field(default_factory=dict)
    # Insertion-ordered sets: holders by admission, the queues by arrival.
    _holders: dict[str, None] = field(default_factory=dict)
    _marked: dict[str, None] = field(default_factory=dict)
    _paused: dict[str, None] = field(default_factory=dict)
    _waiting: dict[str, None] = field(default_factory=dict)
    _finished: int = 0

    def arrive(self, agent: str) -> list[Permit]:
        """An agent, or a returning one under a request cap, wants to generate. Idempotent."""
        member = self._members.setdefault(agent, _Member())
        if agent in self._holders or agent in self._waiting or agent in self._paused:
            return []
        member.state = State.QUEUED if member.admitted else State.PENDING
        self._waiting[agent] = None
        return self._settle()

    def observe(self, agent: str, state: State) -> None:
        """Record that a place holder now generates or waits for its tools. Changes no place."""
        if state not in (State.ACTIVE, State.TOOL_WAIT):
            raise ValueError(f"an agent cannot be observed as {state}")
        if agent in self._holders:
            self._members[agent].state = state

    def yield_place(self, agent: str) -> list[Permit]:
        """Under a request cap: a generation ended, its place is free. Without a place, nothing happens."""
        if not self.per_generation:
            raise ValueError("a place is given up with each generation under a request cap only")
        if agent not in self._holders:
            return []
        del self._holders[agent]
        self._members[agent].state = State.TOOL_WAIT
        return self._settle()

    def reached_boundary(self, agent: str, epoch: int) -> list[Permit]:
        """A marked agent obeyed the permit of `epoch` and waits: its pause takes effect.

        A report that a newer permit has overtaken is void, since that permit lets the agent go on.
        """
        member = self._members.get(agent)
        # An equal epoch means that the host's last word was a mark, even if a controller before this one set it.
        if member is None or member.epoch != epoch or agent not in self._holders:
            return []
        del self._holders[agent]
        self._marked.pop(agent, None)
        member.state = State.PAUSED
        self._paused[agent] = None
        self.moves.paused += 1
        return self._settle()

    def release(self, *agents: str) -> list[Permit]:
        """The agents ended, however; their places and entries are gone. Unknown ones are ignored."""
        for agent in agents:
            if self._members.pop(agent, None) is None:
                continue
            for members in (self._holders, self._marked, self._paused, self._waiting):
                members.pop(agent, None)
            self._finished += 1
            self.moves.completed += 1
        return self._settle()

    def resize(self, capacity: int | None) -> list[Permit]:
        """Set the number of places; marks, unmarks and admits as it must."""
        self.capacity = capacity
        self.granting = True
        return self._settle()

    def restore(self, members: Iterable[Membership]) -> list[Permit]:
        """Take over agents from a host's account, in its order. Agents already known are left as they are."""
        for entry in members:
            if entry.agent in self._members or entry.state is State.FINISHED:
                continue
            self._members[entry.agent] = _Member(entry.state, entry.epoch, entry.admitted)
            if entry.holds_place:
                self._holders[entry.agent] = None
            elif entry.state is State.PAUSED:
                self._paused[entry.agent] = None
            elif entry.state is not State.TOOL_WAIT:
                self._waiting[entry.agent] = None
        return self._settle()

    def take_moves(self) -> Moves:
        """The moves since the last call."""
        moves, self.moves = self.moves, Moves()
        return moves

    @property
    def places_held(self) -> int:
        """Agents that hold a place, the marked ones included."""
        return len(self._holders)

    @property
    def marked(self) -> int:
        """Place holders that will pause at their next boundary."""
        return len(self._marked)

    @property
    def waiting(self) -> int:
        """Agents that want to generate and may not: pending, paused or queued."""
        return len(self._waiting) + len(self._paused)

    def state(self, agent: str) -> State:
        """The agent's state; FINISHED for one that ended or was never here."""
        member = self._members.get(agent)
        return State.FINISHED if member is None else member.state

    def counts(self) -> dict[State, int]:
        """Agents by state."""
        counter = Counter(member.state for member in self._members.values())
        counter[State.FINISHED] = self._finished
        return {state: counter[state] for state in State}

    def _settle(self) -> list[Permit]:
        """Bring marks and places in line with the capacity."""
        if not self.granting:
            return []
        permits: list[Permit] = []
        room = None if self.capacity is None else self.capacity - (len(self._holders) - len(self._marked))
        if room is not None and room < 0:
            if not self.per_generation:  # a request under way is never called back: its place ends by itself
                newest_first = (agent for agent in reversed(self._holders) if agent not in self._marked)
                for agent in [victim for victim, _ in zip(newest_first, range(-room), strict=False)]:
                    self._marked[agent] = None
                    permits.append(self._permit(agent, allowed=False))
            return permits
        if self._marked:
            oldest_first = [agent for agent in self._holders if agent in self._marked]
            for agent in oldest_first[:room]:
                del self._marked[agent]
                permits.append(self._permit(agent, allowed=True))
        while (self._paused or self._waiting) and (self.capacity is None or len(self._holders) < self.capacity):
            queue = self._paused or self._waiting
            agent = next(iter(queue))
            del queue[agent]
            member = self._members[agent]
            if queue is self._paused:
                self.moves.resumed += 1
            elif not member.admitted:
                self.moves.admitted += 1
            member.state, member.admitted = State.ACTIVE, True
            self._holders[agent] = None
            permits.append(self._permit(agent, allowed=True))
        return permits

    def _permit(self, agent: str, *, allowed: bool) -> Permit:
        member = self._members[agent]
        member.epoch += 1
        return Permit(agent, member.epoch, allowed)
