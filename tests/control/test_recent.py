"""What a quantity was of late."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.recent import Recent


def test_the_mean_follows_what_is_new() -> None:
    recent = Recent()
    assert recent.add(5.0, 1.0) == pytest.approx(1 - 1 / math.e)
    assert recent.add(5.0, 0.0) == pytest.approx(1 - 1 / math.e), "no time has passed"
    assert recent.add(100.0, 0.5) == pytest.approx(0.5, abs=1e-6)


@given(st.floats(0.1, 9), st.integers(1, 20), st.floats(0, 1))
def test_how_often_it_is_told_does_not_matter(seconds: float, parts: int, value: float) -> None:
    once, often = Recent(), Recent()
    once.add(seconds, value)
    for part in range(1, parts + 1):
        often.add(seconds * part / parts, value)
    assert often.mean == pytest.approx(once.mean)
