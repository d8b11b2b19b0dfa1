"""The Gini coefficient, beside its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.report.fairness import gini

WAITS = st.lists(st.floats(0, 1e9), max_size=40)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], 0), ([0, 0], 0), ([7], 0), ([3, 3, 3], 0), ([0, 0, 0, 8], 0.75), ([1, 2, 3], 2 / 9), ([5e-324, 0], 0.5)],
)
def test_worked_examples(values: list[float], expected: float) -> None:
    assert gini(values) == pytest.approx(expected)


@given(WAITS)
def test_it_is_half_the_mean_difference_over_the_mean(values: list[float]) -> None:
    total = sum(values)
    differences = sum(abs(one - other) for one in values for other in values)
    expected = differences / (2 * len(values) * total) if total > 1e-300 else gini(values)
    assert gini(values) == pytest.approx(expected, abs=1e-9)


@given(WAITS, st.floats(1e-6, 1e6))
def test_bounds_and_scale(values: list[float], scale: float) -> None:
    found = gini(values)
    assert 0 <= found <= 1 - 1 / max(1, len(values)) + 1e-12
    assert gini([scale * value for value in values]) == pytest.approx(found, abs=1e-9)
    assert gini(values[::-1]) == pytest.approx(found, abs=1e-12)


@given(st.floats(0, 1e9), st.integers(1, 40))
def test_equal_waits_are_even(value: float, count: int) -> None:
    assert gini([value] * count) == pytest.approx(0, abs=1e-12)
