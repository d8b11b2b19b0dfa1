"""Each diagnosis of a window in tokens, on rows that show it and on the nearest that do not."""

from __future__ import annotations

from typing import Any

import pytest
from audit_rows import AGENTS, ROOM, Rows, found, names, rows

BLIND = {"window_tokens": None, "window_before": 16, "window_after": 16, "pool_share": None, "branch": "fixed"}
UNBOUNDED = {"window_tokens": None, "window_before": None, "window_after": None, "pool_share": None}


def bound(count: int, **changes: Any) -> Rows:
    return rows(count, **ROOM | changes)


def named(*parts: Rows, **settings: Any) -> list[str]:
    return names(*parts, policy="token_window", **settings)


def only_evidence(name: str, *parts: Rows, **settings: Any) -> str:
    (finding,) = found(*parts, policy="token_window", **settings)
    assert finding.name == name
    return finding.evidence


def test_the_pools_size_is_not_known() -> None:
    name = "the pool's size is not known"
    evidence = only_evidence(name, bound(20), bound(4, **BLIND), bound(1, **BLIND, pending=34, paused=3))
    assert evidence.startswith("in 5 of 25 periods W was 16 agents")
    assert "37 agents waited" in evidence
    assert named(bound(20), bound(4, **BLIND)) == []
    assert named(bound(20), bound(9, **BLIND, pool_state="closed")) == ["the pool was down"]


def test_agents_lose_prefixes() -> None:
    name = "agents lose prefixes though they keep their places"
    cut = bound(4, pool_share=0.96, kept_tokens=1000, lost_tokens=500)
    evidence = only_evidence(name, bound(5, kept_tokens=9, lost_tokens=9), cut, bound(1, pool_share=0.94))
    assert "in 5 of 10 periods" in evidence
    assert "once 0.94 of it; agents with places lost 25% of" in evidence  # 2,020 of 8,000
    assert named(cut, bound(1, pool_share=0.95)) == []
    assert named(bound(20), bound(4, pool_share=0.5)) == []
    silent = only_evidence(name, bound(5, pool_share=0.5, kept_tokens=0, lost_tokens=0))
    assert silent.endswith("once 0.50 of it")


def test_no_place_is_worth_holding() -> None:
    name = "no place is worth holding"
    evidence = only_evidence(name, bound(10), bound(10, **UNBOUNDED, pending=0, recomputed_tokens=400))
    assert "in 10 of 20 periods" in evidence
    assert "40% of the prefill" in evidence
    assert named(bound(11), bound(10, **UNBOUNDED)) == []
    assert named(bound(2), bound(4, **UNBOUNDED)) == []


def test_a_few_agents_fill_the_pool() -> None:
    name = "a few agents fill the pool"
    few = [*bound(9, places_held=4, tool_wait=1), *bound(1, places_held=2, tool_wait=1, footprint_tokens=88_001)]
    evidence = only_evidence(name, few, bound(10), bound(10, places_held=1, pending=0, tool_wait=0))
    assert "in 10 of 20 periods" in evidence
    assert "once 2 with 44,000 tokens each in a room of 90,000 of the pool's 100,000" in evidence
    assert named(few, bound(11)) == []
    assert named(bound(20, places_held=5, tool_wait=1)) == []
    assert named(bound(4, places_held=1, tool_wait=0), bound(4, pending=0)) == []
    assert named(bound(20, places_held=0, tool_wait=0)) == [], "a batch that has not begun"


def test_the_engine_is_busier_than_its_pool_is_full() -> None:
    name = "the engine is busier than its pool is full"
    kept_out = bound(6, intake_tokens=0, footprint_tokens=45_000)
    evidence = only_evidence(name, kept_out, bound(4, intake_tokens=9_000, footprint_tokens=45_000))
    assert "in 6 of 10 periods" in evidence
    assert "0.50 of the room" in evidence
    assert named(kept_out, bound(7, intake_tokens=9_000, footprint_tokens=45_000)) == []
    assert named(bound(10, intake_tokens=0, footprint_tokens=70_000)) == []
    assert named(bound(4, intake_tokens=0, footprint_tokens=45_000), bound(2, pending=0)) == []


def test_the_window_never_binds() -> None:
    idle = bound(9, pending=0, footprint_tokens=45_000)
    assert "0.50 of the room" in only_evidence("the window never binds", idle)
    for state in ("pending", "paused", "queued"):
        assert named(idle, bound(1, **{"pending": 0, state: 1})) == []
    assert named(idle, bound(1, **UNBOUNDED, pending=0)) == []


def paused(count: int, *others: int) -> Rows:
    """Agents with so many pauses each, the last ones with others."""
    pauses = [*[count] * (len(AGENTS) - len(others)), *others]
    return [{**row, "pauses": each, "paused_seconds": 3.0} for row, each in zip(AGENTS, pauses, strict=True)]


@pytest.mark.parametrize(
    ("agents", "told"),
    [
        (paused(5), "5.0 pauses an agent, 5 of a0"),
        (paused(1, 10), "1.1 pauses an agent, 10 of a99"),
        (paused(0, 13), "0.1 pauses an agent, 13 of a99"),
        (paused(5, 4), None),
        (paused(1, 9), None),
        (paused(2, 10), None),  # not five times the mean
        ([], None),
    ],
)
def test_pauses_churn(agents: Rows, told: str | None) -> None:
    if told is None:
        assert named(bound(10), agents=agents) == []
    else:
        assert only_evidence("pauses churn", bound(10), agents=agents).startswith(told)
    assert names(rows(10), agents=agents) == [], "the law has diagnoses of its own"


def test_other_policies_have_none_of_them() -> None:
    for policy in ("none", "concur", "agent_cap"):
        assert names(rows(20, pool_share=0.4, places_held=1, tool_wait=0), policy=policy) == []
