"""For how long a place is worth holding through a tool wait."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.waits import Waits

lengths = st.lists(st.floats(0.1, 1000), min_size=20, max_size=60)


def of(*seconds: float, times: int = 20) -> Waits:
    waits = Waits()
    for _ in range(times):
        for each in seconds:
            waits.add(each)
    return waits


def cost(waits: list[float], hold_seconds: float, price_seconds: float) -> float:
    """On average: what is held for nothing, and what is lost."""
    paid = [wait if wait <= hold_seconds else hold_seconds + price_seconds for wait in waits]
    return sum(paid) / len(paid)


def test_short_waits_are_held_throughout_and_long_ones_not_at_all() -> None:
    assert of(4.0).hold_seconds(10.0) == math.inf
    assert of(40.0).hold_seconds(10.0) == 0.0


def test_of_short_and_long_waits_the_short_ones_are_held() -> None:
    hold_seconds = of(*[1.0] * 9, 100.0).hold_seconds(10.0)
    assert 1.0 < hold_seconds < 2.0


def test_dear_prefixes_are_held_longer() -> None:
    waits = of(*[1.0] * 9, 100.0)
    assert waits.hold_seconds(1000.0) == math.inf
    assert waits.hold_seconds(0.01) == 0.0


def test_with_few_waits_the_price_itself_bounds_the_loss() -> None:
    assert of(100.0, times=19).hold_seconds(10.0) == 10.0
    assert of(100.0, times=20).hold_seconds(10.0) == 0.0


def test_what_tools_did_long_ago_is_forgotten() -> None:
    waits = of(40.0, times=1000)
    for _ in range(3000):
        waits.add(1.0)
    assert waits.hold_seconds(10.0) > 1.0


def test_counts_do_not_overflow() -> None:
    assert of(4.0, times=300_000).hold_seconds(10.0) == math.inf


@given(lengths, st.floats(0.1, 1000))
def test_no_other_hold_costs_much_less(waits: list[float], price_seconds: float) -> None:
    learned = Waits()
    for wait in waits:
        learned.add(wait)
    hold_seconds = learned.hold_seconds(price_seconds)
    best = min(cost(waits, other, price_seconds) for other in (0.0, *waits, math.inf))
    # Buckets are a fifth wide, and the latest of sixty waits counts an eighth more than the first.
    assert cost(waits, hold_seconds, price_seconds) <= 1.5 * best


@pytest.mark.parametrize("price_seconds", [3.0, 30.0])
def test_on_a_distribution_it_is_as_good_as_the_best_fixed_hold(price_seconds: float) -> None:
    drawn = random.Random(3)
    waits = [drawn.lognormvariate(1.0, 1.5) for _ in range(2000)]
    learned = Waits()
    for wait in waits:
        learned.add(wait)
    best = min(cost(waits, other, price_seconds) for other in [0.0, *(0.1 * 1.1**power for power in range(100)), 1e9])
    assert cost(waits, learned.hold_seconds(price_seconds), price_seconds) <= 1.05 * best
