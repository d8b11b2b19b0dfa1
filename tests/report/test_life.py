"""An agent's life told: waits and why, tries, recomputation, moves, a failed attempt, and one that has not ended."""

from __future__ import annotations

from typing import Any

import pytest

from concur_batch.report.life import tell

TURN: dict[str, Any] = {
    "attempt": 0, "turn": 0, "started_seconds": 1.0, "generation_started_seconds": 3.0, "ended_seconds": 6.0,
    "pending_seconds": 2.0, "paused_seconds": 0.0, "queue_seconds": 0.0, "generation_seconds": 1.5, "output_tokens": 40,
    "input_tokens": 1200, "cached_device_tokens": 900, "cached_host_tokens": 0, "recomputed_tokens": 0,
    "request_attempts": 1, "action": "calls", "replica": "r0",
}  # fmt: skip
CALL: dict[str, Any] = {
    "attempt": 0, "turn": 0, "call": 0, "name": "bash", "arguments": '{"command": "ls"}', "status": "ok",
    "started_seconds": 4.6, "queue_seconds": 0.0, "seconds": 0.3,
}  # fmt: skip
END: dict[str, Any] = {
    "attempt": 0, "final": True, "status": "finished", "end_reason": "submit", "error": None, "reward": 1.0,
    "started_seconds": 1.0, "ended_seconds": 9.0,
}  # fmt: skip
PERIOD: dict[str, Any] = {
    "pool": "r0", "pool_state": "open", "window_before": 8, "window_after": 8, "marked": 0, "forced_in_period": 0,
    "window_tokens": None, "intake_tokens": None, "footprint_tokens": 900, "hold_seconds": None, "places_held": 8,
}  # fmt: skip
PAUSED = {
    **TURN, "turn": 1, "started_seconds": 6.4, "generation_started_seconds": 8.5, "pending_seconds": 0.0,
    "paused_seconds": 2.1,
}  # fmt: skip


def told(
    attempts: list[dict[str, Any]],
    turns: list[dict[str, Any]],
    tools: list[dict[str, Any]],
    control: list[dict[str, Any]] | None = None,
) -> list[str]:
    return [what for _, what in tell(attempts, turns, tools, control or [])]


def test_a_life() -> None:
    paused = {
        **TURN, "turn": 1, "started_seconds": 6.0, "generation_started_seconds": 8.0, "pending_seconds": 0.0,
        "paused_seconds": 2.0, "recomputed_tokens": 1100, "request_attempts": 2, "action": "malformed",
    }  # fmt: skip
    assert told([END], [paused, TURN], [CALL]) == [
        "waited for its first admission, 2.00 s",
        "turn 0: generated 40 tokens in 1.50 s on 1,200, of which 900 were cached",
        'bash {"command": "ls"}: ok, 0.30 s',
        "paused, 2.00 s",
        "turn 1: generated 40 tokens in 1.50 s on 1,200, of which 900 were cached, 1,100 computed again, 2 tries",
        "its action: malformed",
        "finished, submit, reward 1",
    ]


def test_cached_tokens_that_nobody_tells_are_no_zero() -> None:
    untold = {**TURN, "pending_seconds": 0.0, "cached_device_tokens": None, "recomputed_tokens": None}
    assert told([], [untold], []) == [
        "turn 0: generated 40 tokens in 1.50 s on 1,200, of which nobody tells how many were cached",
        "has not ended",
    ]


def test_attempts_are_told_apart() -> None:
    failed = {**END, "final": False, "status": "failed", "end_reason": "engine", "error": "gone", "reward": None}
    lines = told([failed, {**END, "attempt": 1, "started_seconds": 10.0}], [TURN, {**TURN, "attempt": 1}], [])
    assert lines[0] == "attempt 0"
    assert "failed, engine: gone (tried again)" in lines
    assert "attempt 1" in lines


def test_one_that_has_not_ended() -> None:
    assert told([], [TURN], [])[-1] == "has not ended"


def pause(*periods: dict[str, Any], **turn: Any) -> str:
    """What is told of a pause from 6.4 s to 8.5 s, with control rows at 4, 5, 6 ... s."""
    control = [{**PERIOD, "seconds": 4.0 + number, **period} for number, period in enumerate(periods)]
    (line,) = [line for line in told([], [TURN, {**PAUSED, **turn}], [], control[::-1]) if line.startswith("paused")]
    return line


CUT = {"window_before": 8, "window_after": 4, "branch": "cut", "marked": 3}


def test_a_pause_by_a_cut() -> None:
    assert pause(CUT, {"marked": 2}, {"marked": 1}, {}) == "paused, 2.10 s: W went from 8 to 4 at 4.00 s"
    later = {**CUT, "window_before": 4, "window_after": 2}
    assert pause(CUT, {"marked": 2}, later, {}, {}) == "paused, 2.10 s: W went from 4 to 2 at 6.00 s"


@pytest.mark.parametrize(
    "periods",
    [
        [],
        [{}, {}, {}, CUT],  # cut after it began
        [CUT, {"marked": 1}, {"marked": 0}, {}],  # the cut's pauses had all taken effect
        [{}, {}, {"marked": 2}, {}],  # marked by no cut
        [CUT | {"pool": "r1"}, {"pool": "r1"}, {"pool": "r1", "marked": 3}, {}],  # another pool's
        [{"window_before": 8, "window_after": None, "marked": 3}, {"marked": 3}, {"marked": 3}],
    ],
)
def test_a_pause_whose_reason_is_not_known(periods: list[dict[str, Any]]) -> None:
    assert pause(*periods) == "paused, 2.10 s"


@pytest.mark.parametrize(
    ("state", "why"),
    [("suspended", "the run was suspended"), ("closed", "its pool was down"), ("suspect", "its pool was down")],
)
def test_a_pause_by_the_pools_state(state: str, why: str) -> None:
    at = {"pool_state": state}
    assert pause({}, {}, at, at) == f"paused, 2.10 s: {why}"
    assert pause({}, {}, {}, at) == f"paused, 2.10 s: {why}"  # told by the row that ends the period
    assert pause(at, at, {}, {}, at) == "paused, 2.10 s"


ROOM = {"window_before": None, "window_after": None, "window_tokens": 1000, "hold_seconds": 3.0}


def test_a_pause_where_tokens_are_bounded() -> None:
    cut = ROOM | {"footprint_tokens": 1100, "marked": 2}
    told = "paused, 2.10 s: 1,100 tokens were inside of 1,000 at 5.00 s, with a turn more of each to come"
    left = cut | {"footprint_tokens": 950, "marked": 1}  # the others have paused, this one's turn has not ended
    assert pause(cut | {"footprint_tokens": 1200}, cut, left, ROOM) == told
    assert "950 tokens were inside of 1,000 at 5.00 s" in pause(ROOM, left, left, ROOM), "by what was to come"
    assert pause(ROOM, cut, ROOM, ROOM) == "paused, 2.10 s"


def test_a_pause_after_a_tool_wait_that_lost_its_place() -> None:
    """The tool ran from 4.5 s to 6.4 s, with a period's end at 6 s."""
    told = "paused, 2.10 s: its tools took 1.90 s, and a place was held for 1.50 s"
    held, full = ROOM | {"hold_seconds": 1.5}, ROOM | {"marked": 1}
    assert pause(ROOM, ROOM, held, held) == told
    assert pause(ROOM, full, full | held, held) == told, "it had been called back by then, whatever else was marked"
    assert pause(ROOM, held, ROOM, held) == "paused, 2.10 s", "the place was given up in no period of the wait"
    assert pause({}, {}, {"hold_seconds": 1.5}) == told, "under every policy"


def test_a_wait_for_room() -> None:
    """From 1 s to 3 s."""
    control = [{**PERIOD, **ROOM, "seconds": at, "footprint_tokens": int(100 * at)} for at in (0.5, 1.5, 2.5, 3.5)]
    waited = told([], [TURN], [], control)[0]
    told_why = "250 tokens were inside of 1,000 at 2.50 s, with a turn more of each to come"
    assert waited == f"waited for its first admission, 2.00 s: {told_why}"
    busy = "requests waited in the engine at 2.50 s, and no more came in than left"
    assert told([], [TURN], [], [{**control[2], "intake_tokens": 0}])[0].endswith(f"s: {busy}")
    assert told([], [TURN], [], [{**control[2], "intake_tokens": 9}])[0].endswith(told_why)
    for unknown in (control[:1], [{**PERIOD, "seconds": 2.0}], [{**row, "pool": "r1"} for row in control]):
        assert told([], [TURN], [], unknown)[0] == "waited for its first admission, 2.00 s"


def test_a_pause_that_ended_beyond_the_window() -> None:
    let_in = {"forced_in_period": 2}
    assert pause({}, {}, {}, {}, let_in) == "paused, 2.10 s; as it ended, 2 were let in beyond the window"
    assert pause({}, {}, {}, let_in, {}) == "paused, 2.10 s"
    assert pause({}, {}, {}, {}, {}, let_in) == "paused, 2.10 s"
    elsewhere = let_in | {"pool": "r1"}
    assert "2 were let in" in pause({}, {}, {}, {}, elsewhere, replica="r1")
    assert pause({}, {}, {}, {}, elsewhere) == "paused, 2.10 s"


def test_a_move_to_another_pool() -> None:
    down = {**PERIOD, "seconds": 6.0, "pool_state": "closed"}
    lines = told([], [TURN, {**PAUSED, "replica": "r1"}, {**PAUSED, "turn": 2, "replica": "r1"}], [], [down])
    assert lines[2:5] == [
        "paused, 2.10 s: its pool was down",
        "moved from pool r0 to r1",
        "turn 1: generated 40 tokens in 1.50 s on 1,200, of which 900 were cached",
    ]
    assert sum(line.startswith("moved") for line in lines) == 1


def test_another_attempt_is_no_move() -> None:
    lines = told([], [TURN, {**TURN, "attempt": 1, "replica": "r1"}], [])
    assert not any(line.startswith("moved") for line in lines)
