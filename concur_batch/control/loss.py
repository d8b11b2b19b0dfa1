"""A pool that holds less than it should: told by what agents lose though they have kept their places. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from concur_batch.control.member import Spent

# The mean is over so many seconds; a cut begins above the first share and ends below the second, and below the third
# the pool is trusted again.
_MEMORY_SECONDS = 10.0
_CUT_ABOVE = 0.3
_CUT_UNTIL = 0.1
_GROW_BELOW = 0.05
# A second. A cut takes effect as agents reach their boundaries, so it goes slowly, and the way back more so.
_CUT_PER_SECOND = 0.01
_GROWTH_PER_SECOND = 0.002
_LEAST = 0.2


@dataclass(slots=True)
class Loss:
    """`share` of the pool can be relied on: less than all where somebody else uses it too, or an engine keeps more for
    itself than it tells.

    An agent that has kept its place finds its prefix again, however much all agents share at their beginnings, as long
    as everything inside fits; `ratio` is what it does not find.
    """

    share: float = 1.0
    _kept: float = 0.0
    _lost: float = 0.0
    _cutting: bool = False
    _at_seconds: float | None = None

    @property
    def ratio(self) -> float:
        """Of what had been computed for agents with places, how much was recomputed, of late."""
        return self._lost / self._kept if self._kept else 0.0

    def pass_over(self, now_seconds: float) -> None:
        """Leave out a period in which nothing was bounded: what was lost then says nothing."""
        self._at_seconds = now_seconds

    def add(self, now_seconds: float, spent: Spent, idle_share: float, *, wanted: bool) -> None:
        """End a period; `wanted`: agents wait for room. What is lost in long tool waits is no sign of a small pool: the
        more of the tokens inside are idle (`idle_share`), the less a loss tells."""
        elapsed_seconds = 0.0 if self._at_seconds is None else now_seconds - self._at_seconds
        self._at_seconds = now_seconds
        kept = math.exp(-elapsed_seconds / _MEMORY_SECONDS)
        self._kept = kept * self._kept + spent.kept_tokens
        self._lost = kept * self._lost + spent.lost_tokens
        told = self.ratio * (1 - idle_share)
        self._cutting = told > (_CUT_UNTIL if self._cutting else _CUT_ABOVE)
        if self._cutting:
            self.share = max(_LEAST, self.share - _CUT_PER_SECOND * elapsed_seconds)
        elif wanted and told < _GROW_BELOW:
            self.share = min(1.0, self.share + _GROWTH_PER_SECOND * elapsed_seconds)
