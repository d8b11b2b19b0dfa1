"""Each diagnosis of the law's window, on rows that show it and on the nearest that do not."""

from __future__ import annotations

import pytest
from audit_rows import cut, names, only, rows


@pytest.mark.parametrize("policy", ["concur", "steady"])
def test_never_grows(policy: str) -> None:
    control = [*rows(4, phase="warmup", usage=0.7), *rows(1, phase="warmup", usage=0.45), *rows(5, branch="grow")]
    finding = only(control, policy=policy)
    assert finding.name == "the window never grows in warmup"
    assert "0.45" in finding.evidence
    assert "u_low" in finding.change
    assert names(rows(1, phase="warmup", branch="grow"), control) == []
    assert names(rows(8, phase="warmup", usage=0.45, pending=0), rows(1)) == []  # nobody waited
    assert names(rows(4, phase="warmup", usage=0.45), rows(5)) == []


def test_never_cut() -> None:
    thrashing = [
        *rows(3, recomputed_tokens=700, hit_rate=0.3, usage=0.9),
        *rows(1, recomputed_tokens=700, hit_rate=0.4, usage=0.7),
        *rows(1, recomputed_tokens=700, hit_rate=None, usage=None),
    ]
    finding = only(thrashing)
    assert finding.name == "the window is never cut in the middle"
    assert "70%" in finding.evidence
    assert "H at least 0.30" in finding.evidence
    assert "U at most 0.90" in finding.evidence
    assert names(thrashing[1:]) == []
    assert "host memory" in finding.cause
    assert names(thrashing, cut(40, 20)) == []
    assert names(rows(20, recomputed_tokens=299)) == []
    assert names(rows(20, recomputed_tokens=300)) != []
    assert names(rows(20, recomputed_tokens=900, computed_tokens=None)) == []  # the engine does not tell


def test_never_recovers() -> None:
    control = [*rows(5), *cut(40, 20), *rows(9, usage=0.4), *rows(1, usage=0.26)]
    finding = only(control)
    assert finding.name == "the window never recovers after its last cut"
    assert "10 periods" in finding.evidence
    assert "0.26" in finding.evidence
    assert names(control[:-1]) == []
    assert names(control, rows(1, branch="grow")) == []
    assert names(rows(5), cut(40, 20), rows(12, pending=0)) == []


def test_static_limit() -> None:
    assert names(rows(10, window_after=5), rows(10)) == ["the window is only a small static limit"]
    assert names(rows(5, window_after=5)) != []
    assert names(rows(4, window_after=5), rows(4, pending=0)) == []
    assert names(rows(10, window_after=6), rows(10)) == []  # 5 % of 100 agents
    assert names(rows(9, window_after=5), rows(10)) == []
    assert names(rows(10, window_after=5, pending=0), rows(5)) == []
    assert names(rows(10, window_after=6), rows(10), min_window=6) != []


def test_oscillates() -> None:
    swinging = [row for _ in range(8) for row in (*rows(1, branch="grow"), *rows(1, branch="cut"))]
    assert "the window oscillates" in names(swinging)
    steady = [*rows(8, branch="grow"), *rows(3, branch="cut"), *rows(5, branch="grow")]
    assert "the window oscillates" not in names(steady)
    assert "the window oscillates" in names(swinging, rows(59))  # 15 turns in 75 periods
    assert "the window oscillates" not in names(swinging, rows(60))
    assert "the window oscillates" in names(swinging[:6])  # 5 turns
    assert "the window oscillates" not in names(swinging[:5])


def test_never_binds() -> None:
    assert names(rows(10, pending=0)) == ["the window never binds"]
    for state in ("pending", "paused", "queued"):
        assert names(rows(9, pending=0), rows(1, **{"pending": 0, state: 1})) == []


def test_one_congestion_cut_several_times() -> None:
    congestion = [*cut(64, 32), *rows(1), *cut(32, 16), *rows(1, marked=9), *cut(16, 8, marked=15), *cut(8, 4)]
    finding = only(rows(5), congestion, rows(5, branch="grow"))
    assert finding.name == "one congestion is cut several times"
    assert "2 of 4 cuts" in finding.evidence
    assert "from 32 to 4 in 3 cuts" in finding.evidence
    assert "cut_cooldown_seconds" in finding.change


def test_cuts_of_several_congestions() -> None:
    apart = [*cut(32, 16), *rows(1, marked=0), *cut(16, 8), *rows(1), *cut(8, 4), *rows(1), *cut(4, 2), *rows(1)]
    growth = rows(5, branch="grow")
    assert names(rows(5), apart, growth) == []
    again = [*cut(8, 4), *cut(4, 2)]  # one of six cuts, and then one of five
    assert names(rows(5), apart, again, growth) == []
    assert names(rows(5), apart[:6], again, growth) == ["one congestion is cut several times"]


def test_marks_that_no_cut_made_are_no_congestion() -> None:
    assert names(rows(5), cut(40, 20), rows(3), rows(2, marked=9), cut(40, 20), rows(3, branch="grow")) == []


def test_growth_that_does_not_bind() -> None:
    growth = rows(4, branch="grow", pending=0, window_before=48, window_after=50, places_held=9)
    vain = cut(50, 25, places_held=9, marked=0)
    rest = [*rows(5), *rows(2, branch="grow")]
    finding = only(growth[:2], cut(50, 25, places_held=24, marked=0), growth[:2], vain, rest)
    assert finding.name == "the window grows while it does not bind"
    assert "4 increases" in finding.evidence
    assert "from 50 to 25 with 9 places" in finding.evidence
    assert "grow_only_when_binding" in finding.change
    assert names(growth, cut(50, 25, places_held=25, marked=0), rest) != []
    assert names(rows(4, branch="grow", pending=0, window_before=9, places_held=9), vain, rest) != []
    assert names(growth, cut(50, 25, places_held=26, marked=1), rest) == []  # the cut had an effect
    assert names(rows(4, branch="grow", window_before=48, places_held=9), vain, rest) == []  # agents waited
    assert names(rows(4, branch="grow", pending=0, window_before=38), vain, rest) == []  # all came in as it grew
    assert names(growth, rest) == []  # and no cut
    assert (
        names(growth, cut(50, 25, places_held=26, marked=1), rows(1), vain, rest) == []
    )  # growth of before another cut


@pytest.mark.parametrize("policy", ["none", "request_cap", "agent_cap"])
def test_the_laws_diagnoses_are_the_laws_alone(policy: str) -> None:
    assert names(rows(20, pending=0, window_after=None), policy=policy) == []
    assert names(rows(20, window_after=1, recomputed_tokens=900), policy=policy) == []


def test_too_short_a_run_shows_nothing_of_the_law() -> None:
    assert names(rows(4, pending=0)) == []
    assert names(rows(5, pending=0)) != []


@pytest.mark.parametrize("state", ["suspended", "closed", "suspect"])
def test_the_law_is_judged_only_while_agents_may_come_in(state: str) -> None:
    control = [*rows(5), *cut(40, 20), *rows(12, pool_state=state)]
    assert "the window never recovers after its last cut" not in names(control)
