"""What a run looks like at one moment: what people are told, and what a stop must not wait for."""

from __future__ import annotations

from typing import Any

import pytest

from concur_batch.driver.snapshot import join

HOST: dict[str, Any] = {
    "sums": {"turns": 3},
    "endings": {"finished": 1},
    "rewards": (1, 1.0),
    "loop_lag_p99_seconds": 0.01,
    "recorder_error": None,
}
POOLS = {"0": {}, "1": {}}


@pytest.mark.parametrize(
    ("control", "note", "stuck"),
    [
        ({}, None, False),
        ({"suspended": True}, "paused by the operator", False),
        ({"silent_pools": ["1"]}, "pool 1 does not answer: its agents wait", False),
        ({"silent_pools": ["0", "1"]}, "the engine does not answer: its agents wait", True),
        ({"problem": "ValueError()"}, "control has stopped: ValueError()", True),
        ({"drifts": {"0": "other clients use it"}}, "pool 0: other clients use it", False),
    ],
)
def test_a_stop_waits_for_turns_that_can_still_end(control: dict[str, Any], note: str | None, stuck: bool) -> None:
    snapshot = join(1.0, 4, {"pools": POOLS, **control}, [HOST])
    assert snapshot.notes == (() if note is None else (note,))
    assert snapshot.stuck == (note if stuck else None)


def test_several_silent_pools_are_named() -> None:
    control = {"pools": {**POOLS, "2": {}}, "silent_pools": ["0", "2"]}
    assert join(1.0, 4, control, []).notes == ("pools 0, 2 do not answer: their agents wait",)


def test_records_that_cannot_be_written_hold_a_stop_up() -> None:
    snapshot = join(1.0, 4, {"suspended": True}, [HOST, {**HOST, "recorder_error": "disk full"}])
    assert snapshot.notes == ("paused by the operator", "records wait: disk full")
    assert snapshot.stuck == "records wait: disk full"
    assert (snapshot.sums["turns"], snapshot.endings["finished"], snapshot.reward) == (6, 2, 2.0)
