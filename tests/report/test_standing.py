"""How a run stands: what counts as a wait and as a straggler, and every figure at every width."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from concur_batch.report.standing import (
    STATES,
    STRAGGLER_FACTOR,
    WAITING,
    list_view,
    overview_view,
    standing,
)

MANIFEST: dict[str, Any] = {
    "run": "demo-1", "status": "running", "agents": 9, "workload": {"control": {"policy": "concur"}},
}  # fmt: skip


def agent(name: str, state: str, seconds: float = 1.0, active_seconds: float = 0.0, turns: int = 3) -> dict[str, Any]:
    """An agent as its host tells it."""
    pool = None if state == "pending" else "0"
    return {
        "agent_id": name, "attempt": 0, "state": state, "state_seconds": seconds, "pool": pool, "turns": turns,
        "context_tokens": 1234, "pauses": 0, "running_seconds": 99.0, "active_seconds": active_seconds,
    }  # fmt: skip


def ended(name: str, busy_seconds: float, status: str = "finished") -> dict[str, Any]:
    """An agent's final row."""
    return {
        "agent_id": name, "attempt": 0, "status": status, "replica": "0", "turns": 5, "context_tokens": 2000,
        "generation_seconds": busy_seconds / 4, "tool_seconds": busy_seconds * 3 / 4,
    }  # fmt: skip


def control(pool: str, **columns: Any) -> dict[str, Any]:
    """A pool's last control row."""
    return {
        "pool": pool, "window_after": 8, "places_held": 5, "pending": 2, "paused": 1, "queued": 0, "usage": 0.43,
        "hit_rate": 0.81, "pool_state": "open", "window_tokens": None, "footprint_tokens": 900, **columns,
    }  # fmt: skip


def live(*agents: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """The controller's picture."""
    return {"seconds": 83.0, "control": {"suspended": False, "pools": {}}, "agents": list(agents), "silent_hosts": [],
            **parts}  # fmt: skip


def names(agents: list[dict[str, Any]]) -> list[str]:
    return [found["agent_id"] for found in agents]


def shown(view: Any, width: int = 1000) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(view, highlight=False)
    return stream.getvalue()


def test_the_longest_waits_come_first_and_tool_waits_are_none() -> None:
    waits = [agent(f"w{n}", WAITING[n % 3], seconds=n) for n in range(7)]
    picture = standing(MANIFEST, [], [], live(agent("t", "tool_wait", 50.0), *waits))
    assert names(picture["waits"]) == ["w6", "w5", "w4", "w3", "w2"]
    assert picture["states"] == {"active": 0, "tool_wait": 1, "checking": 0, "paused": 3, "queued": 2, "pending": 2}


def test_a_hanging_tool_makes_a_straggler_and_a_long_pause_does_not() -> None:
    agents = [
        agent("hangs", "tool_wait", seconds=25.1, active_seconds=5.0),
        agent("just not", "tool_wait", seconds=25.0, active_seconds=5.0),
        agent("paused", "paused", seconds=500.0, active_seconds=10.0),
        agent("new", "pending", seconds=500.0),  # has done nothing: no part of the median
    ]
    picture = standing(MANIFEST, [ended(f"e{n}", 10.0) for n in range(4)], [], live(*agents))
    assert (picture["busy_seconds_median"], STRAGGLER_FACTOR) == (10.0, 3.0)
    (straggler,) = picture["stragglers"]
    assert (straggler["agent_id"], straggler["busy_seconds"]) == ("hangs", 30.1)
    text = shown(overview_view(picture))
    line = next(line for line in text.splitlines() if line.startswith("hangs "))
    assert line.split() == ["hangs", "tool", "wait", "0:25", "0", "3", "1.23", "k", "0:30"]


def test_an_agent_whose_row_came_first_is_not_counted_twice() -> None:
    picture = standing(MANIFEST, [ended("a", 1.0)], [], live(agent("a", "active"), agent("b", "active")))
    assert (picture["ended"], picture["states"]["active"], names(picture["running"])) == ({"finished": 1}, 1, ["b"])


def test_a_window_tells_who_waits_for_it_and_none_is_without_bound() -> None:
    rows = [control("1", pool_state="closed", usage=None), control("0", window_after=None)]
    picture = standing(MANIFEST, [], rows, live())
    assert [window["waiting"] for window in picture["windows"]] == [3, 3]
    lines = [line.split() for line in shown(overview_view(picture)).splitlines()]
    assert ["0", "∞", "5", "3", "0.43", "0.81", "open"] in lines
    assert ["1", "8", "5", "3", "–", "0.81", "closed"] in lines


def test_a_window_in_tokens_is_told_in_tokens() -> None:
    row = control("0", window_after=None, window_tokens=1_600_000, footprint_tokens=1_234_000)
    picture = standing(MANIFEST, [], [row], live())
    told = {name: picture["windows"][0][name] for name in ("window", "window_tokens", "footprint_tokens")}
    assert told == {"window": None, "window_tokens": 1_600_000, "footprint_tokens": 1_234_000}
    lines = shown(overview_view(picture), 80).splitlines()
    assert "0     1.23 M of 1.6 M tokens inside     5        3  0.43  0.81  open" in [line.rstrip() for line in lines]


def test_pauses_silent_hosts_and_silent_pools_are_told() -> None:
    told = {"suspended": True, "silent_pools": ["1"], "pools": {"0": {}, "1": {}}}
    picture = standing(MANIFEST, [], [], live(control=told, silent_hosts=["host3"]))
    text = shown(overview_view(picture))
    assert text.startswith("demo-1: paused for 1:23, policy concur, 0/9 agents ended\n")
    for note in ("paused by the operator", "pool 1 does not answer", "host3 does not answer"):
        assert note in text


@pytest.mark.parametrize(
    ("status", "seconds", "head"),
    [
        ("finished", 12.0, "demo-1: finished after 0:12, policy concur, 3/9 agents ended (1 cancelled, 2 finished)"),
        ("running", None, "demo-1: killed, policy concur, 3/9 agents ended (1 cancelled, 2 finished)"),
    ],
)
def test_a_run_that_is_not_live_shows_how_it_ended(status: str, seconds: float | None, head: str) -> None:
    manifest = {**MANIFEST, "status": status, "seconds": seconds}
    rows = [ended("a", 1.0), ended("b", 1.0), ended("c", 9.0, "cancelled")]
    picture = standing(manifest, rows, [control("0")], None, "demo-1 is not running")
    assert (picture["live"], picture["suspended"], picture["waits"]) == (False, False, [])
    assert names(picture["stragglers"]) == ["c"]
    text = shown(overview_view(picture)).splitlines()
    assert text[:2] == [head, "demo-1 is not running"]


def test_a_list_holds_the_asked_states_only_longest_first() -> None:
    agents = [agent("p1", "pending", 1.0), agent("a1", "active", 1.0), agent("a2", "active", 2.0)]
    picture = standing(MANIFEST, [], [], live(*agents))
    listed = [line.split()[0] for line in shown(list_view(picture, STATES)).splitlines()[4:]]
    assert listed == ["a2", "a1", "p1"]
    assert "a1" not in shown(list_view(picture, ("pending",)))
    assert shown(list_view(picture, ("paused",))).count("\n") == 2  # the head alone


@given(
    st.lists(st.tuples(st.sampled_from(STATES), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=30),
    st.lists(st.floats(0, 1e6), max_size=30),
    st.integers(30, 200),
)
def test_any_run_is_told_in_json_and_at_any_width(
    running: list[tuple[str, float, float]], over: list[float], width: int
) -> None:
    agents = [agent(f"task-{n:04d}/0", *values) for n, values in enumerate(running)]
    final = [ended(f"over-{n:04d}/0", seconds) for n, seconds in enumerate(over)]
    picture = standing(MANIFEST, final, [control("0")], live(*agents))
    assert json.loads(json.dumps(picture)) == picture
    assert sum(picture["states"].values()) + sum(picture["ended"].values()) == len(agents) + len(final)
    waiting = [row["state_seconds"] for row in agents if row["state"] in WAITING]
    assert [row["state_seconds"] for row in picture["waits"]] == sorted(waiting, reverse=True)[:5]
    limit = STRAGGLER_FACTOR * (picture["busy_seconds_median"] or 0)
    assert all(row["busy_seconds"] > limit for row in picture["stragglers"])
    for view in (overview_view(picture), list_view(picture, STATES)):
        assert max(map(len, shown(view, width).splitlines())) <= width
