"""What a window carries at a period's end. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from concur_batch.control.member import NOTHING_SPENT, Spent
from concur_batch.control.waits import Waits


@dataclass(frozen=True, slots=True)
class Load:
    """`generating` of its agents, `marked` pauses that have not taken effect, `waiting` agents that want a place.

    `footprint_tokens` are what its agents have in the pool of `pool_tokens` (None: not known), if nothing of it was
    evicted: `shared_tokens` that all have in common, and what each has of its own, of which `idle_tokens` are of agents
    that wait for their tools. These take as long as `waits` has seen. A turn adds `growth_tokens` to an agent (None:
    nobody has come so far as to show it). `spent` is of the turns that ended in the period.
    """

    seconds: float
    generating: int = 0
    marked: int = 0
    waiting: int = 0
    footprint_tokens: int = 0
    idle_tokens: int = 0
    shared_tokens: int = 0
    pool_tokens: int | None = None
    growth_tokens: int | None = None
    spent: Spent = NOTHING_SPENT
    waits: Waits = field(default_factory=Waits)
