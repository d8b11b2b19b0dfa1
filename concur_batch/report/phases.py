"""Which phase of a batch an engine is in, told by run-time state and never by a turn count. Pure.

warmup: the pool has room yet. middle: the pool is full, by occupancy (locked and evictable tokens over the pool; the
locked share alone says nothing, it was seen anywhere from 0.04 to 0.98 while a pool was full), and agents compete for
it. cooldown: the hit rate has recovered and nobody waits for admission any more, or the pool has emptied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from enum import StrEnum

# The paper's middle phase runs at 80 to 100 % usage.
FULL_OCCUPANCY = 0.8
# The paper's warmup and recovered hit rates are about 0.9 and its collapsed ones below 0.4; between the two.
RECOVERED_HIT_RATE = 0.65
# One period's hit rate may rest on a single request; the mean of so many periods with look-ups decides.
_PERIODS = 5


class Phase(StrEnum):
    WARMUP = "warmup"
    MIDDLE = "middle"
    COOLDOWN = "cooldown"


# Of the phases of several pools, the one that says most of the batch.
_LEADING = (Phase.MIDDLE, Phase.WARMUP, Phase.COOLDOWN)


def leading_phase(phases: Collection[str]) -> Phase:
    """The phase to name where pools are in several: middle before warmup before cooldown."""
    return next(phase for phase in _LEADING if phase in phases)


class PhaseTracker:
    """Feeds on one control period after the other; the phase may go back from cooldown to middle."""

    def __init__(self) -> None:
        self.phase = Phase.WARMUP
        self._hit_rates: deque[float] = deque(maxlen=_PERIODS)

    def step(self, occupancy: float | None, hit_rate: float | None, waiting: int) -> Phase:
        """The phase after a period. `waiting` counts agents that want to generate and are not admitted.

        An engine that does not tell its occupancy stays in warmup: nothing is known of its pool.
        """
        if occupancy is None:
            return self.phase
        if hit_rate is not None:
            self._hit_rates.append(hit_rate)
        full = occupancy >= FULL_OCCUPANCY
        known = len(self._hit_rates) == _PERIODS
        hits_again = known and sum(self._hit_rates) / _PERIODS >= RECOVERED_HIT_RATE
        recovered = hits_again and waiting == 0
        collapsed = known and not hits_again
        match self.phase:
            case Phase.WARMUP if full:
                self.phase = Phase.MIDDLE
                self._hit_rates.clear()
            case Phase.MIDDLE if not full or recovered:
                self.phase = Phase.COOLDOWN
            case Phase.COOLDOWN if full and (collapsed or waiting > 0):
                self.phase = Phase.MIDDLE
        return self.phase
