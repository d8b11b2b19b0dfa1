"""Each diagnosis, on a trajectory that shows it and on the nearest one that does not."""

from __future__ import annotations

from typing import Any

import pytest

from concur_batch.control.audit import Finding, audit
from concur_batch.workload.schema import Concur

SETTINGS = Concur(policy="concur").model_dump()
AGENTS = [{"agent_id": f"a{number}", "paused_seconds": 0.0, "pauses": 0} for number in range(100)]
PERIOD = {
    "phase": "middle", "window_after": 40, "branch": "hold", "usage": 0.4, "hit_rate": 0.8, "pending": 10, "paused": 0,
    "computed_tokens": 1000, "recomputed_tokens": 20, "stale": False, "sample_age_seconds": 0.0,
}  # fmt: skip


def periods(count: int, **changes: Any) -> list[dict[str, Any]]:
    return [{**PERIOD, **changes} for _ in range(count)]


def found(control: list[dict[str, Any]], agents: list[dict[str, Any]] = AGENTS, **settings: Any) -> list[Finding]:
    return audit(control, agents, {**SETTINGS, **settings})


def names(control: list[dict[str, Any]], agents: list[dict[str, Any]] = AGENTS, **settings: Any) -> list[str]:
    return [finding.name for finding in found(control, agents, **settings)]


def test_a_healthy_run_has_none() -> None:
    control = [
        *periods(8, phase="warmup", branch="grow", usage=0.1),
        *periods(30),
        *periods(3, branch="grow", pending=0),
    ]
    assert names(control) == []


def test_never_grows() -> None:
    control = [*periods(8, phase="warmup", usage=0.45), *periods(5, branch="grow")]
    (finding,) = found(control)
    assert finding.name == "the window never grows in warmup"
    assert "0.45" in finding.evidence
    assert "u_low" in finding.change
    assert names([*periods(1, phase="warmup", branch="grow"), *control]) == []
    assert names(periods(8, phase="warmup", usage=0.45, pending=0) + periods(1)) == []  # nobody waited


def test_never_cut() -> None:
    thrashing = periods(20, computed_tokens=1000, recomputed_tokens=700, hit_rate=0.3, usage=0.9)
    (finding,) = found(thrashing)
    assert finding.name == "the window is never cut in the middle"
    assert "70%" in finding.evidence
    assert names([*thrashing, *periods(1, branch="cut")]) == []
    assert names(periods(20, recomputed_tokens=100)) == []


def test_never_recovers() -> None:
    control = [*periods(5), *periods(1, branch="cut"), *periods(12, usage=0.26)]
    (finding,) = found(control)
    assert finding.name == "the window never recovers after its last cut"
    assert "12 periods" in finding.evidence
    assert names([*control, *periods(1, branch="grow")]) == []
    assert names([*periods(5), *periods(1, branch="cut"), *periods(12, pending=0)]) == []


def test_static_limit() -> None:
    assert names([*periods(10, window_after=4), *periods(5)]) == ["the window is only a small static limit"]
    assert names([*periods(5, window_after=4), *periods(10)]) == []
    assert names([*periods(10, window_after=4, pending=0), *periods(5)]) == []


def test_oscillates() -> None:
    swinging = [row for _ in range(8) for row in (*periods(1, branch="grow"), *periods(1, branch="cut"))]
    assert "the window oscillates" in names(swinging)
    steady = [*periods(8, branch="grow"), *periods(3, branch="cut"), *periods(5, branch="grow")]
    assert "the window oscillates" not in names(steady)


def test_never_binds() -> None:
    assert names(periods(10, pending=0)) == ["the window never binds"]
    assert names(periods(9, pending=0) + periods(1, pending=0, paused=1)) == []


def test_stale_samples_are_told_under_every_policy() -> None:
    control = [*periods(8), *periods(4, stale=True, sample_age_seconds=7.0)]
    for settings in ({}, {"policy": "none"}):
        (finding,) = found(control, **settings)
        assert finding.name == "the engine's signals are stale"
        assert "4 of 12" in finding.evidence
    assert names([*periods(18), *periods(2, stale=True)]) == []


def test_starvation() -> None:
    agents = [{"agent_id": f"a{number}", "paused_seconds": 2.0, "pauses": 1} for number in range(10)]
    assert names(periods(10), agents) == []
    agents[3] = {"agent_id": "unlucky", "paused_seconds": 90.0, "pauses": 7}
    (finding,) = found(periods(10), agents)
    assert finding.name == "agents starve"
    assert "unlucky" in finding.evidence


@pytest.mark.parametrize("policy", ["none", "request_cap", "agent_cap"])
def test_the_laws_diagnoses_are_the_laws_alone(policy: str) -> None:
    assert names(periods(20, pending=0, window_after=None), policy=policy) == []
    assert names(periods(20, window_after=1, recomputed_tokens=900), policy=policy) == []


def test_too_short_a_run_shows_nothing() -> None:
    assert names(periods(4, window_after=1, pending=0)) == []
