"""An agent's life told: waits, tries, recomputation, a failed attempt, and one that has not ended."""

from typing import Any

from concur_batch.report.life import tell

TURN: dict[str, Any] = {
    "attempt": 0, "turn": 0, "started_seconds": 1.0, "generation_started_seconds": 3.0, "ended_seconds": 6.0,
    "pending_seconds": 2.0, "paused_seconds": 0.0, "queue_seconds": 0.0, "generation_seconds": 1.5, "output_tokens": 40,
    "input_tokens": 1200, "cached_device_tokens": 900, "cached_host_tokens": 0, "recomputed_tokens": 0,
    "request_attempts": 1, "action": "calls",
}  # fmt: skip
CALL: dict[str, Any] = {
    "attempt": 0, "turn": 0, "call": 0, "name": "bash", "arguments": '{"command": "ls"}', "status": "ok",
    "started_seconds": 4.6, "queue_seconds": 0.0, "seconds": 0.3,
}  # fmt: skip
END: dict[str, Any] = {
    "attempt": 0, "final": True, "status": "finished", "end_reason": "submit", "error": None, "reward": 1.0,
    "started_seconds": 1.0, "ended_seconds": 9.0,
}  # fmt: skip


def told(*rows: list[dict[str, Any]]) -> list[str]:
    return [what for _, what in tell(*rows)]


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


def test_attempts_are_told_apart() -> None:
    failed = {**END, "final": False, "status": "failed", "end_reason": "engine", "error": "gone", "reward": None}
    lines = told([failed, {**END, "attempt": 1, "started_seconds": 10.0}], [TURN, {**TURN, "attempt": 1}], [])
    assert lines[0] == "attempt 0"
    assert "failed, engine: gone (tried again)" in lines
    assert "attempt 1" in lines


def test_one_that_has_not_ended() -> None:
    assert told([], [TURN], [])[-1] == "has not ended"
