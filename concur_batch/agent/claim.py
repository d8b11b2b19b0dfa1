"""One agent's claim to generate, as its host keeps it: when it must ask, and what a permit gives it. Pure.

asks ──► (waits for a permit: takes) ──► passes ──► generated, its tools run ──► asks
                                            └─────► refused by its engine ─────► asks
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from concur_batch.control.member import NO_TRAITS, Beat, Event, Membership, Permit, State, Traits
from concur_batch.control.rules import Rules

# Why an engine does not take a generation: it does not answer, or its pool is too small for it.
Refusal = Literal["down", "large"]


class Wish(NamedTuple):
    """What an agent wants to generate on: the length of its history, and how much of that its pool has not seen.

    `outgrown`: the history does not fit the pool that the agent belongs to, and another may hold it. `shared_tokens`
    at its beginning are what all histories have in common, as far as is known.
    """

    context_tokens: int
    new_tokens: int
    outgrown: bool = False
    shared_tokens: int | None = None


@dataclass(slots=True)
class Pass:
    """Leave to generate in `pool`, and the seconds that it was waited for, by why.

    `paused`: it was taken from an agent that had a place before, for however long.
    """

    pool: str = ""
    pending_seconds: float = 0.0
    paused_seconds: float = 0.0
    queue_seconds: float = 0.0
    paused: bool = False


@dataclass(slots=True)
class Claim:
    """Time comes in as an argument, on any clock that does not jump.

    `allowed`: it has leave, to go on with now or at its next boundary. `waits`: it wants to generate and has not gone
    on yet. `refused`: its engine did not take its generation. `pool` is where its last leave was for.
    """

    agent: str
    traits: Traits = NO_TRAITS
    state: State = State.PENDING
    since_seconds: float = 0.0
    epoch: int = 0
    pool: str | None = None
    context_tokens: int = 0
    allowed: bool = False
    waits: bool = False
    refused: Refusal | None = None
    shared_tokens: int | None = None
    _waited_seconds: float | None = None
    _leave: Pass = field(default_factory=Pass)

    @property
    def generates(self) -> bool:
        """Whether a generation of it is under way."""
        return self.state is State.ACTIVE and self.refused is None

    def asks(self, wish: Wish, rules: Rules, now_seconds: float) -> Event | None:
        """It wants to generate; what must be told to the controller, None where its leave is enough.

        An agent has one generation at a time, and counts as one: raises RuntimeError where it asks for a second.
        """
        if self.waits or self.generates:
            raise RuntimeError(f"{self.agent} asks for a second generation before its first has ended")
        if self.state is State.TOOL_WAIT:
            self._waited_seconds = now_seconds - self.since_seconds
        kind = self._needs(wish, rules)
        self._leave = Pass()
        self.context_tokens, self.shared_tokens = wish.context_tokens, wish.shared_tokens
        if kind == "arrive":
            self._enter_state(State.PENDING if self.state is State.PENDING else State.QUEUED, now_seconds)
        elif kind is not None:
            # What leave it has, or has got since it was refused, is not to be used: it is of that pool.
            self.allowed, self.refused = False, None
            self._enter_state(State.PAUSED, now_seconds)
        self.waits = True
        if kind is None:
            return None
        traits = self.traits if kind == "arrive" else NO_TRAITS
        return Event(kind, self.agent, self.epoch, wish.context_tokens, traits, wish.shared_tokens)

    def takes(self, permit: Permit, now_seconds: float) -> Event | None:
        """A permit has come; what must be told to the controller. One that is older than the last is void."""
        if permit.epoch <= self.epoch:
            return None
        self.epoch, self.allowed = permit.epoch, permit.allowed
        if permit.allowed:
            self.pool = permit.pool
        if permit.allowed or not self.waits:
            return None
        # It waits already, and its last report is void by now: this mark takes effect at once.
        self._enter_state(State.PAUSED, now_seconds)
        return Event("boundary", self.agent, permit.epoch, self.context_tokens)

    def passes(self, now_seconds: float) -> Pass:
        """It goes on, with the leave that it has."""
        self._enter_state(State.ACTIVE, now_seconds)
        self.waits = False
        self._leave.pool = self.pool or ""
        return self._leave

    def generated(self, context_tokens: int, rules: Rules, now_seconds: float) -> Event | None:
        """Its generation has ended and its tools run; what must be told: under a request cap its place is free."""
        self.context_tokens = context_tokens
        self._enter_state(State.TOOL_WAIT, now_seconds)
        if not rules.per_generation:
            return None
        self.allowed = False
        return Event("yield", self.agent, self.epoch)

    def refuse(self, why: Refusal) -> None:
        """The engine does not take its generation: it gives its place back when it asks next."""
        self.refused = why

    def beat(self) -> Beat | None:
        """What the controller should hear of it now and then while it holds a place; None while it waits. The length of
        a tool wait is told once."""
        if self.state not in (State.ACTIVE, State.TOOL_WAIT):
            return None
        waited_seconds, self._waited_seconds = self._waited_seconds, None
        return Beat(self.agent, self.state, self.context_tokens, waited_seconds)

    def membership(self, rules: Rules) -> Membership:
        """All of it, for a controller that starts anew."""
        # One with leave that has not gone on yet does not wait any more.
        state = State.ACTIVE if self.allowed and self.waits else self.state
        holds_place = (
            self.allowed or self.state is State.ACTIVE or (self.state is State.TOOL_WAIT and not rules.per_generation)
        )
        admitted = self.pool is not None
        return Membership(
            self.agent,
            state,
            self.epoch,
            admitted,
            holds_place,
            self.pool,
            self.context_tokens,
            self.traits,
            self.shared_tokens,
        )

    def _needs(self, wish: Wish, rules: Rules) -> Literal["arrive", "boundary", "large", "down"] | None:
        if self.state is State.PENDING:
            return "arrive"
        if self.refused is not None:
            return self.refused
        if rules.per_generation:
            return "arrive"
        if not self.allowed:
            return "boundary"
        long = rules.long_request_tokens is not None and wish.new_tokens > rules.long_request_tokens
        return "large" if long or wish.outgrown else None

    def _enter_state(self, state: State, now_seconds: float) -> None:
        if self.waits:
            waited_seconds = now_seconds - self.since_seconds
            match self.state:
                case State.PENDING:
                    self._leave.pending_seconds += waited_seconds
                case State.PAUSED:
                    self._leave.paused_seconds += waited_seconds
                case State.QUEUED:
                    self._leave.queue_seconds += waited_seconds
        self.state, self.since_seconds = state, now_seconds
        self._leave.paused |= state is State.PAUSED


def longest_seconds(claims: Iterable[Claim], now_seconds: float) -> dict[str, float]:
    """How long the longest generation that is under way has taken so far, by pool."""
    longest: dict[str, float] = {}
    for claim in claims:
        if claim.generates and claim.pool is not None:
            longest[claim.pool] = max(longest.get(claim.pool, 0.0), now_seconds - claim.since_seconds)
    return longest
