"""Policies: what a period decides."""

import pytest

from concur_batch.control.law import Branch
from concur_batch.control.policies import Aimd, make_policy
from concur_batch.engine.signals import Sample
from concur_batch.workload.schema import AgentCap, Concur, NoControl, RequestCap


def sample(usage: float | None, hit_rate: float | None = 0.9, *, stale: bool = False) -> Sample:
    return Sample(usage, hit_rate, None, stale, "why" if stale else "", 0.0, None)


def concur(**fields: int) -> Aimd:
    policy = make_policy(Concur(policy="concur", **fields), agents=20)
    assert isinstance(policy, Aimd)
    return policy


@pytest.mark.parametrize(
    ("control", "capacity", "per_generation"),
    [
        (NoControl(policy="none"), None, False),
        (RequestCap(policy="request_cap", cap=5), 5, True),
        (AgentCap(policy="agent_cap", cap=7), 7, False),
    ],
)
def test_fixed_policies_never_move(control: NoControl, capacity: int | None, per_generation: bool) -> None:
    policy = make_policy(control, agents=20)
    assert (policy.start(0), policy.per_generation) == (capacity, per_generation)
    verdict = policy.step(capacity, sample(0.99, 0.0))
    assert (verdict.after, verdict.branch) == (capacity, Branch.FIXED)


def test_a_stale_sample_changes_nothing() -> None:
    for usage in (0.0, 0.99):
        verdict = concur().step(8, sample(usage, 0.0, stale=True))
        assert (verdict.after, verdict.branch) == (8, Branch.HOLD)
        assert "stale" in verdict.reason


def test_an_engine_without_usage_changes_nothing() -> None:
    assert concur().step(8, sample(None)).after == 8


def test_the_bounds_hold_and_the_reason_says_so() -> None:
    policy = concur(min_window=3)
    cut = policy.step(4, sample(0.9, 0.1))
    assert (cut.after, cut.branch) == (3, Branch.CUT)
    assert "bound" in cut.reason
    assert policy.step(20, sample(0.1)).after == 20  # as many as there are agents


def test_a_controller_that_takes_over_goes_on_from_the_places_held() -> None:
    assert concur(initial_window=4).start(0) == 4
    assert concur(initial_window=4).start(11) == 11
