"""The law, branch by branch and at its edges, and the worked example of the paper."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.law import Branch, Law

SHARES = st.floats(0, 1)
WINDOWS = st.integers(0, 10_000)


def below(value: float) -> float:
    return math.nextafter(value, -math.inf)


def above(value: float) -> float:
    return math.nextafter(value, math.inf)


@pytest.mark.parametrize(
    ("usage", "hit_rate", "window", "branch"),
    [
        (below(0.2), 0.90, 12, Branch.GROW),
        (below(0.2), 0.00, 12, Branch.GROW),  # low usage grows whatever the hit rate
        (below(0.2), None, 12, Branch.GROW),
        (0.0, None, 12, Branch.GROW),  # an idle engine is a fresh sample
        (0.2, 0.00, 10, Branch.HOLD),  # thresholds are strict
        (0.5, 0.00, 10, Branch.HOLD),
        (above(0.5), below(0.2), 5, Branch.CUT),
        (above(0.5), 0.00, 5, Branch.CUT),
        (above(0.5), 0.20, 10, Branch.HOLD),
        (1.0, 0.90, 10, Branch.HOLD),  # a full cache of reused prefixes is healthy
        (1.0, None, 10, Branch.HOLD),  # no look-ups: no sign of thrashing
    ],
)
def test_branches_at_their_edges(usage: float, hit_rate: float | None, window: int, branch: Branch) -> None:
    assert Law().step(10, usage, hit_rate) == (window, branch)


@pytest.mark.parametrize(
    ("law", "usage", "hit_rate", "window", "branch"),
    [
        (Law(alpha=3), 0.1, 0.9, 13, Branch.GROW),
        (Law(beta=0.75), 0.9, 0.1, 7, Branch.CUT),
        (Law(u_low=0.3), below(0.3), 0.1, 12, Branch.GROW),
        (Law(u_low=0.3), 0.3, 0.1, 10, Branch.HOLD),
        (Law(u_high=0.8), 0.8, 0.1, 10, Branch.HOLD),
        (Law(u_high=0.8), above(0.8), 0.1, 5, Branch.CUT),
        (Law(h_thresh=0.6), 0.9, below(0.6), 5, Branch.CUT),
        (Law(h_thresh=0.6), 0.9, 0.6, 10, Branch.HOLD),
    ],
)
def test_each_constant_moves_its_own_edge(law: Law, usage: float, hit_rate: float, window: int, branch: Branch) -> None:
    assert law.step(10, usage, hit_rate) == (window, branch)


def test_the_published_defaults() -> None:
    assert Law() == Law(alpha=2, beta=0.5, u_low=0.2, u_high=0.5, h_thresh=0.2)


def test_the_worked_example() -> None:
    """W=4: U=0.65, H=0.15 cut it to 2; U=0.45, H=0.82 hold it; U=0.18 grows it to 4."""
    law, window, taken = Law(), 4, []
    for usage, hit_rate in ((0.65, 0.15), (0.45, 0.82), (0.18, 0.82)):
        window, branch = law.step(window, usage, hit_rate)
        taken.append((window, branch))
    assert taken == [(2, Branch.CUT), (2, Branch.HOLD), (4, Branch.GROW)]


def test_two_cuts_undo_what_takes_24_steps_of_growth() -> None:
    law, window = Law(), 64
    for _ in range(2):
        window, _ = law.step(window, 0.9, 0.1)
    assert window == 16
    for _ in range(24):
        window, _ = law.step(window, 0.1, 0.9)
    assert window == 64


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
