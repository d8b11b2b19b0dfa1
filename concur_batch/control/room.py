"""The bounds of a window in tokens. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """Agents are let in while what those inside have in the pool, `turns_ahead` more turns of each counted in, is at
    most `admit_tokens`, and paused while it is more than `pause_tokens`. A tool wait of more than `hold_seconds` gives
    the place up; None: none does. `pool_share` of the pool is relied on. Until the next period those inside may come to
    have `intake_tokens` more of their own than they have now: beyond that nobody is let in, but for the first one.
    None: no such bound."""

    admit_tokens: int
    pause_tokens: int
    hold_seconds: float | None = None
    turns_ahead: float = 0.0
    pool_share: float = 1.0
    intake_tokens: int | None = None
