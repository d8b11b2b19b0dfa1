"""The places of one KV pool: who holds one, who is to give it back, who waits to have it again. Pure.

An agent holds a place from its admission until it ends or its pause takes effect; a tool wait keeps it. Under a
request cap a place lasts for one generation only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from concur_batch.control.member import Member, State
from concur_batch.control.queue import Queue
from concur_batch.control.room import Room
from concur_batch.control.rules import Rules


@dataclass(slots=True)
class Moves:
    """What changed since the last control period. `forced` of the admitted and resumed came in beyond the window."""

    admitted: int = 0
    resumed: int = 0
    paused: int = 0
    completed: int = 0
    forced: int = 0


@dataclass(slots=True)
class Window:
    """`capacity` is the number of places, None for no bound. A closed window, since `closed_at_seconds`, keeps its
    account and lets nobody in.

    `marked` are the holders that will pause at their next boundary. `adrift` are agents of this pool that run on
    without a place (their pool was closed, or their tool takes too long): they pause at their next boundary too.
    `history_tokens` sums the holders' histories, all of which begin with the same `shared_tokens` and grow by
    `growth_tokens` a turn; `own_tokens_before` is what they had of their own, as the room counts it, when the control
    period began; `evicted_tokens` is what the pool has evicted since the start, `finished` counts the agents
    that ended here.
    """

    name: str
    rules: Rules
    paused: Queue
    capacity: int | None = None
    closed: bool = False
    closed_at_seconds: float = 0.0
    pool_tokens: int | None = None
    evicted_tokens: int = 0
    history_tokens: int = 0
    shared_tokens: int = 0
    growth_tokens: int = 0
    room: Room | None = None
    own_tokens_before: int = 0
    finished: int = 0
    holders: dict[str, Member] = field(default_factory=dict)  # by admission
    marked: dict[str, None] = field(default_factory=dict)
    adrift: dict[str, Member] = field(default_factory=dict)
    moves: Moves = field(default_factory=Moves)

    @property
    def free(self) -> int | None:
        """Places that nobody holds; None: any number. A marked holder's place is not free yet."""
        return None if self.capacity is None else self.capacity - len(self.holders)

    @property
    def spare(self) -> int:
        """How much room there is, to compare pools: tokens, places, or the fewest holders where nothing bounds them."""
        if self.room is not None:
            return self.room.admit_tokens - self._tokens_ahead(self.room)
        return -len(self.holders) if self.free is None else self.free

    @property
    def footprint_tokens(self) -> int:
        """What the holders have in the pool, if nothing of it was evicted: what they share is there once."""
        return self.history_tokens - max(0, len(self.holders) - 1) * self.shared_tokens

    @property
    def idle_tokens(self) -> int:
        """Of the footprint, what agents have of their own that wait for their tools."""
        return sum(self._own_tokens(each) for each in self.holders.values() if each.state is State.TOOL_WAIT)

    @property
    def longest_tool_wait_seconds(self) -> float | None:
        """After which a tool wait gives its place up; nobody has to while nobody wants it."""
        if self.rules.longest_tool_wait_seconds is not None or self.room is None:
            return self.rules.longest_tool_wait_seconds
        return self.room.hold_seconds

    @property
    def open(self) -> bool:
        """Whether somebody could be let in now."""
        return not self.closed and (self.capacity is None or len(self.holders) < self.capacity)

    @property
    def generating_tokens(self) -> int:
        """The histories of the agents that generate here, with a place or adrift."""
        members = (*self.holders.values(), *self.adrift.values())
        return sum(member.context_tokens for member in members if member.state is State.ACTIVE)

    def set_room(self, room: Room | None) -> None:
        """Bound it in tokens anew, for a control period."""
        self.room = room
        self.own_tokens_before = 0 if room is None else self._own_tokens_ahead(room)

    def enter(self, agent: str, member: Member) -> None:
        """Give the agent a place."""
        self.holders[agent] = member
        self.history_tokens += member.context_tokens

    def leave(self, agent: str) -> Member | None:
        """Take the agent's place back, and whatever else it is here; None if it held no place and was not adrift."""
        member = self.holders.pop(agent, None)
        self.marked.pop(agent, None)
        if member is None:
            return self.adrift.pop(agent, None)
        self.history_tokens -= member.context_tokens
        return member

    def set_adrift(self, agent: str) -> None:
        """Take the place of a holder that cannot be asked now; it runs on until its next boundary."""
        member = self.leave(agent)
        if member is not None:
            self.adrift[agent] = member

    def grow_history(self, agent: str, context_tokens: int) -> None:
        """Note the length of a holder's history."""
        member = self.holders[agent]
        self.history_tokens += context_tokens - member.context_tokens
        member.context_tokens = context_tokens

    def surplus(self, suspended: bool) -> int:
        """Holders that must still be marked (above zero), or marks that may be lifted (below).

        While the run is suspended, nobody is to keep a place.
        """
        if suspended:
            return len(self.holders) - len(self.marked)
        if self.room is not None:
            return self._overweight(self.room)
        return -len(self.marked) if self.capacity is None else len(self.holders) - len(self.marked) - self.capacity

    def _overweight(self, room: Room) -> int:
        """The same where tokens are bounded: one agent always keeps its place."""
        kept_tokens = self._tokens_ahead(room) - sum(self._weight(self.holders[agent], room) for agent in self.marked)
        if kept_tokens > room.pause_tokens:
            candidates, count = self._ranked(), 0
            while kept_tokens > room.pause_tokens and count < len(candidates) - 1:
                kept_tokens -= self._weight(self.holders[candidates[count]], room)
                count += 1
            return count
        if not self.marked:  # as at most events, of which each asks
            return 0
        count = 0
        for agent in self.holders:  # marks are lifted in this order
            if agent in self.marked:
                kept_tokens += self._weight(self.holders[agent], room)
                if kept_tokens > room.admit_tokens:
                    break
                count += 1
        return -count

    def reprieved(self, count: int) -> list[str]:
        """The next holders whose marks are to be lifted, the oldest admissions first."""
        return [agent for agent in self.holders if agent in self.marked][:count]

    def victims(self, count: int) -> list[str]:
        """The next holders to mark. Those left alone by this cut begin their count of pauses in a row anew."""
        candidates = self._ranked()
        for agent in islice(candidates, count, None):
            self.holders[agent].pauses_in_a_row = 0
        return candidates[:count]

    def _ranked(self) -> list[str]:
        """Those that may be marked, the next one first."""
        candidates = [agent for agent in self.holders if agent not in self.marked and not self.holders[agent].forced]
        match self.rules.victim_order:
            case "newest":
                candidates.reverse()
            case "oldest":
                pass
            case "largest":
                candidates.sort(key=lambda agent: -self.holders[agent].context_tokens)
            case "smallest":
                candidates.sort(key=lambda agent: self.holders[agent].context_tokens)
            case "longest_idle":
                candidates.reverse()  # the newest of those that generate
                candidates.sort(key=lambda agent: self._idle_since(self.holders[agent]))
        # Sorting is stable: lower priorities first, and those that were paused often enough last.
        candidates.sort(key=lambda agent: self.holders[agent].traits.priority)
        most = self.rules.max_consecutive_pauses
        if most is not None:
            candidates.sort(key=lambda agent: self.holders[agent].pauses_in_a_row >= most)
        return candidates

    def _tokens_ahead(self, room: Room) -> int:
        """The footprint when each holder has had as many more turns as the room looks ahead."""
        return self.footprint_tokens + int(len(self.holders) * room.turns_ahead * self.growth_tokens)

    def _own_tokens_ahead(self, room: Room) -> int:
        """Of these, what the holders share with nobody."""
        return self._tokens_ahead(room) - (self.shared_tokens if self.holders else 0)

    def _weight(self, member: Member, room: Room) -> int:
        """What one of them has of its own then."""
        return self._own_tokens(member) + int(room.turns_ahead * self.growth_tokens)

    def _own_tokens(self, member: Member) -> int:
        """Of an agent's history, what it shares with nobody."""
        return max(0, member.context_tokens - self.shared_tokens)

    def holds(self, member: Member) -> bool:
        """Whether the whole pool is large enough for the agent's history."""
        return self.pool_tokens is None or member.context_tokens < self.pool_tokens

    def can_pay(self) -> bool:
        """Whether a holder could be paused for one that is let in beyond the window."""
        payers = sum(not member.forced and agent not in self.marked for agent, member in self.holders.items())
        return payers > max(0, self.surplus(suspended=False))

    def fits(self, member: Member, *, idle: bool = False) -> bool:
        """Whether the pool has room for the agent's history beside the holders', where a rule asks for it.

        A pool that nobody uses takes anybody: one agent always goes on. `idle`: nobody generates there.
        """
        rules, room = self.rules, self.room
        if not self.holders:
            return True
        if room is not None and self._is_full(room, member):
            return idle and rules.feed_idle  # no caution is worth an engine that does nothing
        if (rules.long_request_tokens is None and rules.growth_turns is None) or self.pool_tokens is None:
            return True
        growth_tokens = (rules.growth_turns or 0) * self.growth_tokens * (len(self.holders) + 1)
        histories_tokens = self.history_tokens + member.context_tokens + growth_tokens
        return histories_tokens <= rules.room_share * self.pool_tokens

    def _is_full(self, room: Room, member: Member) -> bool:
        weight = self._weight(member, room)
        if self._tokens_ahead(room) + weight > room.admit_tokens:
            return True
        if room.intake_tokens is None:
            return False
        come_tokens = self._own_tokens_ahead(room) - self.own_tokens_before
        if come_tokens <= 0 < room.intake_tokens:
            return False  # the first of a period, however large
        return come_tokens + weight > room.intake_tokens

    def prefix_gone(self, member: Member) -> bool:
        """Whether the agent's prefix is believed evicted: so much has been since its last turn."""
        if self.closed:
            return True
        gone = self.evicted_tokens - member.evicted_before
        return bool(self.pool_tokens) and gone >= self.rules.move_evicted_share * (self.pool_tokens or 0)

    @staticmethod
    def _idle_since(member: Member) -> float:
        return member.since_seconds if member.state is State.TOOL_WAIT else float("inf")
