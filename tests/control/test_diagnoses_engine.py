"""Each diagnosis of the engine, on rows that show it and on the nearest that do not."""

from __future__ import annotations

import pytest
from audit_rows import SETTINGS, bounds, names, only, rows


@pytest.mark.parametrize("policy", SETTINGS)
def test_stale_samples_are_told_under_every_policy(policy: str) -> None:
    bound = bounds(policy)
    finding = only(rows(8, **bound), rows(2, **bound, stale=True, sample_age_seconds=7.0), policy=policy)
    assert finding.name == "the engine's signals are stale"
    assert "2 of 10" in finding.evidence
    assert "7.0 s" in finding.evidence
    assert names(rows(9, **bound), rows(2, **bound, stale=True), policy=policy) == []


@pytest.mark.parametrize(("drift", "cause"), [(0.25, "host memory"), (-0.25, "retries")])
def test_counters_that_disagree_with_the_requests(drift: float, cause: str) -> None:
    finding = only(rows(40), rows(3, drift_hit_rate=drift), rows(2, drift_hit_rate=-drift / 2), policy="none")
    assert finding.name == "the engine's counters and its requests disagree"
    assert f"{drift:+.2f}" in finding.evidence
    assert "5 periods" in finding.evidence
    assert cause in finding.cause
    assert names(rows(40, drift_hit_rate=drift * 0.4)) == []  # 0.1 and no more
    assert names(rows(40, drift_hit_rate=drift, drift_lookups=1.2)) == [finding.name]
    assert names(rows(40, drift_hit_rate=None, drift_lookups=None)) == []


def test_other_clients() -> None:
    finding = only(rows(40), rows(2, drift_lookups=1.7, drift_hit_rate=-0.4))  # which explains the other H
    assert finding.name == "other clients use the engine"
    assert "1.7 times" in finding.evidence
    assert names(rows(40, drift_lookups=1.2)) == []


def test_a_pool_that_was_down() -> None:
    outage = [*rows(1, pool_state="suspect", pending=12), *rows(3, pool_state="closed", paused=30)]
    finding = only(rows(6), outage, rows(6), rows(2, pool_state="closed"), rows(2), policy="agent_cap")
    assert finding.name == "the pool was down"
    assert "outages: 2, 6 s in all and 4 s at most; up to 40 agents" in finding.evidence
    assert names(rows(6), rows(3, pool_state="suspended"), rows(6), policy="agent_cap") == []


def test_restarts() -> None:
    finding = only(rows(6), rows(1, restarted=True), rows(6), policy="none")
    assert finding.name == "the engine was restarted"
    assert finding.evidence == "restarts: 1"
    resized = only(
        rows(6),
        rows(1, pool_tokens=None),
        rows(1, restarted=True, pool_tokens=80_000),
        rows(6, pool_tokens=80_000),
        policy="none",
    )
    assert "100,000 to 80,000 tokens" in resized.evidence
    assert "--max-total-tokens" in resized.change
    assert "--max-total-tokens" not in finding.change
