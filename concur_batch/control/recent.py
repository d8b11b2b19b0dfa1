"""What a quantity was of late. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MEMORY_SECONDS = 5.0


@dataclass(slots=True)
class Recent:
    """The mean over the last seconds: what is older counts for e times less each five of them."""

    mean: float = 0.0
    _at_seconds: float = 0.0

    def add(self, now_seconds: float, value: float) -> float:
        """End a period; the mean."""
        self.mean += (1 - math.exp((self._at_seconds - now_seconds) / _MEMORY_SECONDS)) * (value - self.mean)
        self._at_seconds = now_seconds
        return self.mean
