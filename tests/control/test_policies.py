"""Policies: what a period decides."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.governor import Governor
from concur_batch.control.growth import Growth
from concur_batch.control.law import Branch, Law
from concur_batch.control.load import Load
from concur_batch.control.policies import Aimd, make_policy
from concur_batch.control.policy import Verdict
from concur_batch.control.rules import Rules, make_rules
from concur_batch.engine.signals import Sample
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, NoControl, RequestCap, Steady

SHARES = st.floats(0, 1)
SAMPLES = st.builds(Sample, usage=SHARES, hit_rate=st.none() | SHARES)


def sample(usage: float | None, hit_rate: float | None = 0.9, *, stale: bool = False) -> Sample:
    return Sample(usage=usage, hit_rate=hit_rate, stale=stale, note="why" if stale else "")


def concur(**fields: Any) -> Aimd:
    policy = make_policy(Concur(policy="concur", **fields), agents=20)
    assert isinstance(policy, Aimd)
    return policy


@pytest.mark.parametrize(
    ("control", "capacity"),
    [
        (NoControl(policy="none"), None),
        (RequestCap(policy="request_cap", cap=5), 5),
        (AgentCap(policy="agent_cap", cap=7), 7),
    ],
)
def test_fixed_policies_never_move(control: AnyControl, capacity: int | None) -> None:
    policy = make_policy(control, agents=20)
    assert policy.start(0, None).after == policy.start(3, None).after == capacity
    for seen in (sample(0.99, 0.0), sample(0.0), sample(None), sample(0.99, 0.0, stale=True)):
        verdict = policy.step(capacity, seen, Load(0.0, waiting=9))
        assert (verdict.before, verdict.after, verdict.branch) == (capacity, capacity, Branch.FIXED)


def test_another_cap_takes_effect_at_the_next_period() -> None:
    policy = make_policy(AgentCap(policy="agent_cap", cap=7), agents=20)
    verdict = policy.step(3, sample(0.1), Load(0.0))
    assert (verdict.before, verdict.after) == (3, 7)


@given(st.lists(st.tuples(SAMPLES, st.integers(0, 9), st.integers(0, 9)), max_size=30), st.integers(1, 40))
def test_concur_as_published_is_exactly_the_law(periods: list[tuple[Sample, int, int]], initial: int) -> None:
    """Whatever the load, and with nothing remembered from one period to the next."""
    policy, law = concur(initial_window=initial, max_window=50), Law()
    window = policy.start(0, None).after
    assert policy.growth == Growth()
    for second, (seen, marked, waiting) in enumerate(periods):
        assert window is not None
        assert seen.usage is not None
        proposed, branch = law.step(window, seen.usage, seen.hit_rate)
        verdict = policy.step(window, seen, Load(float(second), marked=marked, waiting=waiting))
        assert (verdict.before, verdict.after, verdict.branch) == (window, min(50, max(1, proposed)), branch)
        window = verdict.after


def test_a_stale_sample_changes_nothing() -> None:
    """peers.md section 3 row 4: deltas of a lagging engine cut a window once a poll, and errors grew it while idle."""
    policy = concur(cut_cooldown_seconds=5.0, slow_start=True)
    before = policy.growth
    for usage, hit_rate in ((0.0, None), (0.99, 0.0)):
        for period in range(10):
            verdict = policy.step(8, sample(usage, hit_rate, stale=True), Load(float(period), waiting=9))
            assert (verdict.after, verdict.branch) == (8, Branch.HOLD)
            assert verdict.reason == "stale sample: why"
    assert policy.growth is before
    assert policy.growth.collapse is None
    assert policy.step(8, sample(0.0), Load(10.0, waiting=9)).branch is Branch.GROW  # the same, fresh
    assert concur().step(8, sample(0.99, 0.0), Load(10.0)).branch is Branch.CUT


def test_an_engine_without_usage_changes_nothing() -> None:
    verdict = concur().step(8, sample(None, 0.0), Load(0.0))
    assert (verdict.after, verdict.branch) == (8, Branch.HOLD)
    assert "usage" in verdict.reason


def test_the_law_needs_a_bound() -> None:
    with pytest.raises(ValueError, match="bounded"):
        concur().step(None, sample(0.1), Load(0.0))


def test_the_bounds_hold_and_the_reason_says_so() -> None:
    policy = concur(min_window=3)
    cut = policy.step(4, sample(0.9, 0.1), Load(0.0))
    assert cut == Verdict(4, 3, Branch.CUT, "U 0.90, H 0.10; 2 held at the bound 3")
    grown = policy.step(19, sample(0.1, None), Load(0.0))
    assert grown == Verdict(19, 20, Branch.GROW, "U 0.10, H undefined; 21 held at the bound 20")  # all agents


def test_a_window_never_falls_below_one() -> None:
    """floor(1 * 0.5) is 0: without the floor the batch would stand still, and U = 0 would have to bring it back."""
    assert Law().step(1, 0.9, 0.0) == (0, Branch.CUT)
    policy, window = concur(), 64
    for period in range(20):
        window = policy.step(window, sample(0.9, 0.0), Load(float(period))).after or 0
    assert window == 1
    assert policy.step(window, sample(0.1), Load(20.0)).after == 3


def test_a_controller_that_takes_over_goes_on_from_the_places_held() -> None:
    assert concur(initial_window=4).start(0, None).after == 4
    assert concur(initial_window=4).start(11, None).after == 11
    assert concur(initial_window=4).start(99, None).after == 20
    assert concur(initial_window=99).start(0, None).after == 20


def test_the_settings_reach_the_law_and_its_options() -> None:
    """Every threshold and option of the block, each with a value of its own."""
    policy = concur(
        alpha=3,
        beta=0.7,
        u_low=0.1,
        u_high=0.6,
        h_thresh=0.3,
        initial_window=5,
        min_window=2,
        max_window=9,
        grow_only_when_binding=True,
        grow_only_when_served=True,
        cut_cooldown_seconds=4.0,
        slow_start=True,
        remember_collapse=True,
    )
    assert policy == Aimd(Law(3, 0.7, 0.1, 0.6, 0.3), 5, 2, 9, Growth(True, True, 4.0, True, True))


def test_steady_is_the_published_law_with_every_option_on() -> None:
    steady = Steady(policy="steady")
    assert make_policy(steady, agents=20) == Aimd(Law(), 16, 1, 20, Growth(True, True, 5.0, True, True))
    assert make_rules(steady) == Rules(resume_age_seconds=60.0, max_consecutive_pauses=2)
    assert Governor(steady, ["p"], 20).readings_per_period == 4


def test_more_agents_at_least_than_there_are() -> None:
    assert concur(min_window=30).start(0, None).after == 30
