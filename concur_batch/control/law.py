"""The control law of CONCUR (arXiv 2601.22705): additive increase, multiplicative decrease of the agent window."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class Branch(StrEnum):
    """Which line of the law was taken; FIXED where a policy has no law."""

    GROW = "grow"
    CUT = "cut"
    HOLD = "hold"
    FIXED = "fixed"


@dataclass(frozen=True, slots=True)
class Law:
    """The law's constants; the defaults are the published ones."""

    alpha: int = 2
    beta: float = 0.5
    u_low: float = 0.2
    u_high: float = 0.5
    h_thresh: float = 0.2

    def step(self, window: int, usage: float, hit_rate: float | None) -> tuple[int, Branch]:
        """The next window, in agents, and the branch that gave it.

        `usage` U is the share of the engine's KV pool that is locked, `hit_rate` H the share of looked-up prefix
        tokens found on the device in the same period. H is None in a period without look-ups: nothing then says
        that the cache thrashes, so there is no cut, and growth still follows U.

            W + alpha          if U < u_low
            floor(W * beta)    if U > u_high and H < h_thresh
            W                  otherwise
        """
        if usage < self.u_low:
            return window + self.alpha, Branch.GROW
        if usage > self.u_high and hit_rate is not None and hit_rate < self.h_thresh:
            return math.floor(window * self.beta), Branch.CUT
        return window, Branch.HOLD
