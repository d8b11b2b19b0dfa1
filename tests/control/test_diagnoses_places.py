"""Each diagnosis of who holds the places, on rows that show it and on the nearest that do not."""

from __future__ import annotations

from audit_rows import HEALTHY, Rows, names, only, rows


def test_forced_admissions() -> None:
    finding = only(rows(5), rows(1, forced_in_period=3, resumed_in_period=30, places_held=43), policy="agent_cap")
    assert finding.name == "agents are let in beyond the window"
    assert "3 of 30" in finding.evidence
    assert "up to 3 more places" in finding.evidence
    assert "longest_pause_seconds" in finding.change
    assert names(rows(5), rows(1, forced_in_period=3, resumed_in_period=31), policy="agent_cap") == []


def test_an_idle_window() -> None:
    hung = rows(30, tool_wait=32, active=8)
    fuller = rows(30, tool_wait=40, active=0, pending=7)
    finding = only(rows(5), fuller, rows(5), hung, rows(5), policy="agent_cap")
    assert finding.name == "the window is idle"
    assert "for 60 s, 30 s at a time" in finding.evidence
    assert "32 of 40 while 10 agents waited" in finding.evidence
    assert "longest_tool_wait_seconds" in finding.change
    assert names(hung[:29], rows(5), policy="agent_cap") == []
    assert names(hung[:20], rows(1), hung[:20], policy="agent_cap") == []  # not at a time
    assert names(rows(40, tool_wait=31, active=9), policy="agent_cap") == []
    assert names(rows(40, tool_wait=40, pending=0), policy="agent_cap") == []  # nobody waits
    assert names(rows(40, tool_wait=0, places_held=0), policy="agent_cap") == []
    assert names(rows(40, tool_wait=1, places_held=1, pending=1), policy="agent_cap") != []
    assert names(rows(40, tool_wait=60, adrift=30), policy="agent_cap") == []  # those adrift hold no place
    assert names(rows(40, tool_wait=40), policy="request_cap") == []  # there a tool wait holds none
    assert names(rows(40, tool_wait=40, pool_state="suspended"), policy="agent_cap") == []


def test_the_least_idle_time_is_of_time_and_of_periods() -> None:
    assert names(rows(4, tool_wait=40), rows(2), policy="agent_cap", period_seconds=60.0) == []
    assert names(rows(5, tool_wait=40), rows(2), policy="agent_cap", period_seconds=60.0) == ["the window is idle"]


def test_overshoot() -> None:
    over = [
        *rows(4, history_tokens=110_000, recomputed_tokens=700),
        *rows(1, history_tokens=140_000, recomputed_tokens=700),
    ]
    finding = only(rows(20), over, rows(20), rows(3), policy="agent_cap")
    assert finding.name == "the holders' histories overshoot the pool"
    assert "5 periods" in finding.evidence
    assert "1.40" in finding.evidence
    assert "30,000 tokens" in finding.evidence
    for setting in ("long_request_tokens", "growth_turns", "kv_budget_tokens"):
        assert setting in finding.change
    assert names(rows(20), over[:4], rows(20), policy="agent_cap") == []
    assert names(rows(40, history_tokens=100_000, recomputed_tokens=900), policy="agent_cap") == []  # it just fits
    assert names(rows(40, history_tokens=140_000), policy="agent_cap") == []  # shared prompts: nothing recomputed
    assert names(rows(40, history_tokens=140_000, recomputed_tokens=900, window_after=None), policy="none") == []


def test_overshoot_is_recomputed_only_as_agents_return() -> None:
    over, later = rows(5, history_tokens=140_000), rows(5, recomputed_tokens=800)
    assert names(over, later, rows(20), policy="agent_cap") != []
    assert names(over, rows(1), later[:4], policy="agent_cap") != []
    assert names(over, rows(5), later, policy="agent_cap") == []
    assert names(over, rows(5), rows(1, recomputed_tokens=9_000), policy="agent_cap") == []
    assert names(rows(10, history_tokens=140_000, recomputed_tokens=300), policy="agent_cap") != []
    assert names(rows(10, history_tokens=140_000, recomputed_tokens=299), policy="agent_cap") == []


def test_a_rise_that_a_new_holder_brings_is_no_jump() -> None:
    steady = [
        {**HEALTHY, "places_held": 20 + number, "history_tokens": 104_000 + 4_000 * number, "recomputed_tokens": 800}
        for number in range(10)
    ]
    assert "was 0 tokens" in only(steady, policy="agent_cap").evidence


def test_starvation() -> None:
    agents: Rows = [{"agent_id": f"a{number}", "paused_seconds": 2.0, "pauses": 1} for number in range(10)]
    assert names(rows(10), agents=agents) == []
    agents[3] = {"agent_id": "unlucky", "paused_seconds": 20.0, "pauses": 7}
    finding = only(rows(10), agents=agents)
    assert finding.name == "agents starve"
    assert "unlucky" in finding.evidence
    agents[3] = {"agent_id": "unlucky", "paused_seconds": 19.9, "pauses": 7}
    assert names(rows(10), agents=agents) == []
    agents[3] = {"agent_id": "unlucky", "paused_seconds": 99.0, "pauses": 7}
    assert names(rows(10), agents=agents[:5]) == ["agents starve"]
    assert names(rows(10), agents=agents[:4]) == []
