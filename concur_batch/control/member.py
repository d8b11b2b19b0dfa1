"""An agent as the controller sees it, and what host and controller tell each other of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, NamedTuple


class State(StrEnum):
    """The life of an agent. QUEUED occurs under a request cap only: between turns, waiting for a permit."""

    PENDING = "pending"
    ACTIVE = "active"
    TOOL_WAIT = "tool_wait"
    PAUSED = "paused"
    QUEUED = "queued"
    FINISHED = "finished"


class Traits(NamedTuple):
    """What the task says of its agents: higher priorities first, groups share, the nearest deadline (seconds since the
    run's start) first."""

    priority: int = 0
    group: str = ""
    deadline_seconds: float | None = None


NO_TRAITS = Traits()


class Event(NamedTuple):
    """What a host tells the controller of one agent.

    arrive: it wants to generate and has no place. boundary: it obeys the permit of `epoch` and waits. large: it gives
    its place back since its next prompt is long. down: its pool does not answer. yield: a generation ended, under a
    request cap. release: it ended, however. `context_tokens` is the length of its history, `shared_tokens` how many at
    its beginning all agents of its host have in common, as far as they have come; None for the first.
    """

    kind: Literal["arrive", "boundary", "large", "down", "yield", "release"]
    agent: str
    epoch: int = 0
    context_tokens: int = 0
    traits: Traits = NO_TRAITS
    shared_tokens: int | None = None


class Beat(NamedTuple):
    """What a host tells now and then of an agent that goes on without asking; `waited_seconds`: for how long it has
    waited for its tools, where it has since the last beat."""

    agent: str
    state: State
    context_tokens: int
    waited_seconds: float | None = None


class Spent(NamedTuple):
    """What the turns that ended in a pool tell of their prompts, summed over those that tell their cached tokens, and
    how long the longest generation took that ended or is under way: so long may the engine have counted a prompt before
    its turn tells of it.

    `kept_tokens` had been computed before for agents that have kept their places since; `lost_tokens` of them were
    recomputed. `prefill_tokens_per_second` is of the prompt that was computed fastest, 0 where none tells."""

    input_tokens: int = 0
    device_hit_tokens: int = 0
    recomputed_tokens: int = 0
    longest_seconds: float = 0.0
    kept_tokens: int = 0
    lost_tokens: int = 0
    prefill_tokens_per_second: float = 0.0

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            self.input_tokens + other.input_tokens,
            self.device_hit_tokens + other.device_hit_tokens,
            self.recomputed_tokens + other.recomputed_tokens,
            max(self.longest_seconds, other.longest_seconds),
            self.kept_tokens + other.kept_tokens,
            self.lost_tokens + other.lost_tokens,
            max(self.prefill_tokens_per_second, other.prefill_tokens_per_second),
        )


NOTHING_SPENT = Spent()


@dataclass(frozen=True, slots=True)
class Permit:
    """Tells an agent's host whether the agent may start its next generation, and in which pool.

    A later epoch of the same agent overrides an earlier one, in whichever order they arrive.
    """

    agent: str
    epoch: int
    allowed: bool
    pool: str


@dataclass(frozen=True, slots=True)
class Membership:
    """One agent as its host knows it, to rebuild the admission from. `pool` holds its prefix, if any does."""

    agent: str
    state: State
    epoch: int
    admitted: bool  # has ever been
    holds_place: bool
    pool: str | None = None
    context_tokens: int = 0
    traits: Traits = NO_TRAITS
    shared_tokens: int | None = None


@dataclass(slots=True)
class Member:
    """The controller's account of one agent.

    `context_tokens` is the length of its history now, `seen_tokens` what it was when last seen in a state.
    `granted` is the epoch of its last leave to generate. `ticket` tells when it began to wait, `since_seconds` when its
    state began. `evicted_before` is what its pool had evicted at its last turn. `forced`: let in beyond the window, and
    not to be paused before it has generated.
    """

    traits: Traits = NO_TRAITS
    state: State = State.PENDING
    epoch: int = 0
    granted: int = 0
    admitted: bool = False
    pool: str | None = None
    context_tokens: int = 0
    seen_tokens: dict[State, int] = field(default_factory=dict)
    ticket: int = 0
    since_seconds: float = 0.0
    evicted_before: int = 0
    pauses_in_a_row: int = 0
    forced: bool = False
