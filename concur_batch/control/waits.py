"""How long tools take, learned while they run, and for how long a place is worth holding through a wait. Pure."""

from __future__ import annotations

import math
from itertools import accumulate

# A wait counts in the bucket whose lower edge is the last of these that it reaches: from 0.1 s, a fifth more each, to
# some four hours.
_EDGES_SECONDS = (0.0, *(0.1 * 1.2**power for power in range(66)))
# Of the count of all earlier waits, with each new one: the last five hundred or so count.
_KEPT = 0.998
# With fewer, they say little of the next one.
_FEWEST = 20


class Waits:
    """The lengths of past tool waits, in buckets."""

    def __init__(self) -> None:
        self._counts = [0.0] * len(_EDGES_SECONDS)
        self._seconds = [0.0] * len(_EDGES_SECONDS)  # the sum of those in the bucket
        self._added = 0
        self._weight = 1.0  # of the next one: grows, which is cheaper than to let all others shrink

    def add(self, seconds: float) -> None:
        """A wait has ended."""
        first = _EDGES_SECONDS[1]
        bucket = 0 if seconds < first else 1 + int(math.log(seconds / first, 1.2))
        bucket = min(bucket, len(_EDGES_SECONDS) - 1)
        self._added += 1
        self._weight /= _KEPT
        self._counts[bucket] += self._weight
        self._seconds[bucket] += self._weight * seconds
        if self._weight > 1e100:
            self._counts = [count / self._weight for count in self._counts]
            self._seconds = [total / self._weight for total in self._seconds]
            self._weight = 1.0

    def hold_seconds(self, price_seconds: float) -> float:
        """For how long a place should be held through a wait, where losing what it protects costs as much as holding it
        for `price_seconds`: 0 where it is given up at once, infinity where always held. Least on average over the waits
        seen,

            sum of min(wait, hold) + price * (number of waits beyond hold)

        With few of them, `price_seconds`: then holding costs at most twice what it would if lengths were known (the ski
        rental rule).
        """
        if self._added < _FEWEST:
            return price_seconds
        ended = accumulate(self._seconds, initial=0.0)  # up to each edge
        beyond = reversed(list(accumulate(reversed(self._counts))))
        best_seconds, least = math.inf, sum(self._seconds)
        for edge, ended_seconds, count in zip(_EDGES_SECONDS, ended, beyond, strict=False):
            cost = ended_seconds + count * (edge + price_seconds)
            if cost < least:
                best_seconds, least = edge, cost
        return best_seconds
