"""The law, branch by branch and at its edges, and the worked example of the paper."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.law import Branch, Law

SHARES = st.floats(0, 1)
WINDOWS = st.integers(0, 10_000)


@pytest.mark.parametrize(
    ("usage", "hit_rate", "window", "branch"),
    [
        (0.19, 0.90, 12, Branch.GROW),
        (0.19, 0.00, 12, Branch.GROW),  # low usage grows whatever the hit rate
        (0.19, None, 12, Branch.GROW),
        (0.20, 0.00, 10, Branch.HOLD),  # thresholds are strict
        (0.50, 0.00, 10, Branch.HOLD),
        (0.51, 0.19, 5, Branch.CUT),
        (0.51, 0.20, 10, Branch.HOLD),
        (0.99, 0.90, 10, Branch.HOLD),  # a full cache of reused prefixes is healthy
        (0.99, None, 10, Branch.HOLD),  # no look-ups: no sign of thrashing
    ],
)
def test_branches(usage: float, hit_rate: float | None, window: int, branch: Branch) -> None:
    assert Law().step(10, usage, hit_rate) == (window, branch)


def test_the_published_defaults() -> None:
    assert Law() == Law(alpha=2, beta=0.5, u_low=0.2, u_high=0.5, h_thresh=0.2)


def test_two_cuts_take_a_window_of_64_to_16() -> None:
    law, window = Law(), 64
    for _ in range(2):
        window, branch = law.step(window, 0.9, 0.1)
        assert branch is Branch.CUT
    assert window == 16


def test_an_odd_window_is_cut_downwards() -> None:
    assert Law().step(7, 0.9, 0.1) == (3, Branch.CUT)


@given(WINDOWS, SHARES, st.none() | SHARES, st.integers(1, 9), st.floats(0.1, 0.9), SHARES, SHARES, SHARES)
def test_exactly_one_branch(
    window: int,
    usage: float,
    hit_rate: float | None,
    alpha: int,
    beta: float,
    one: float,
    two: float,
    h_thresh: float,
) -> None:
    law = Law(alpha, beta, min(one, two), max(one, two), h_thresh)
    after, branch = law.step(window, usage, hit_rate)
    grows = usage < law.u_low
    cuts = not grows and usage > law.u_high and hit_rate is not None and hit_rate < h_thresh
    assert branch is (Branch.GROW if grows else Branch.CUT if cuts else Branch.HOLD)
    assert after == {Branch.GROW: window + alpha, Branch.CUT: math.floor(window * beta), Branch.HOLD: window}[branch]
