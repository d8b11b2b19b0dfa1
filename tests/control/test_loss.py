"""A pool that holds less than it should is told by what its agents lose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.loss import Loss
from concur_batch.control.member import Spent


def after(loss: Loss, ratio: float, seconds: int, *, begin: int = 0, idle: float = 0.0, wanted: bool = True) -> Loss:
    """Seconds in which agents lost that share of what they had."""
    for second in range(begin, begin + seconds):
        loss.add(float(second), Spent(kept_tokens=1000, lost_tokens=int(1000 * ratio)), idle, wanted=wanted)
    return loss


def test_nothing_lost_leaves_all_of_the_pool() -> None:
    assert after(Loss(), 0.0, 100).share == 1.0


def test_pages_that_are_rounded_off_are_no_loss_to_speak_of() -> None:
    assert after(Loss(), 0.2, 100).share == 1.0


def test_much_lost_takes_a_hundredth_a_second_until_it_ends_and_comes_back_slowly() -> None:
    loss = after(Loss(), 0.8, 21)
    assert round(loss.share, 2) == 0.80
    assert after(loss, 0.2, 10, begin=21).share < 0.75, "a cut that has begun goes on while anything much is lost"
    least = after(loss, 0.0, 30, begin=31).share
    assert 0.55 < least < 0.70
    assert least < after(loss, 0.0, 20, begin=61).share < least + 0.05
    assert after(loss, 0.0, 300, begin=81).share == 1.0


def test_it_comes_back_only_when_somebody_waits() -> None:
    loss = after(Loss(), 0.8, 40)
    least = after(loss, 0.0, 60, begin=40, wanted=False).share
    assert after(loss, 0.0, 60, begin=100, wanted=False).share == least


def test_what_is_lost_in_long_tool_waits_is_no_sign_of_a_small_pool() -> None:
    assert after(Loss(), 0.8, 100, idle=0.9).share == 1.0


def test_periods_that_were_passed_over_count_for_nothing() -> None:
    loss = after(Loss(), 0.8, 11)
    share = loss.share
    loss.pass_over(500.0)
    loss.add(501.0, Spent(kept_tokens=1000, lost_tokens=800), 0.0, wanted=True)
    assert loss.share == pytest.approx(share - 0.01)


def test_quiet_periods_change_nothing() -> None:
    loss = after(Loss(), 0.8, 40)
    ratio = loss.ratio
    for second in range(40, 60):
        loss.add(float(second), Spent(), 0.0, wanted=True)
    assert loss.ratio == pytest.approx(ratio)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=200))
def test_a_share_is_always_left(seen: list[tuple[float, float]]) -> None:
    loss = Loss()
    for second, (ratio, idle) in enumerate(seen):
        loss.add(float(second), Spent(kept_tokens=1000, lost_tokens=int(1000 * ratio)), idle, wanted=True)
        assert 0.2 <= loss.share <= 1.0
