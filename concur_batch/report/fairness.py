"""How evenly agents wait. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def gini(values: Sequence[float]) -> float:
    """The Gini coefficient of figures that are not negative: 0 where all are equal, or there are none, and towards 1
    the more of their sum a few of them have. Of n figures it is at most 1 - 1/n, whatever their unit."""
    greatest = max(values, default=0.0)
    if not greatest:
        return 0.0
    # In shares of the greatest: sums of the least and of the largest floats stay exact enough.
    shares = sorted(value / greatest for value in values)
    count = len(shares)
    ranked = sum((2 * rank - count - 1) * share for rank, share in enumerate(shares, 1))
    return max(0.0, ranked / (count * sum(shares)))
