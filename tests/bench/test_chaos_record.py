"""What `make chaos` holds against a run: calls on record without an intent from before they began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from concur_batch.bench.chaos.record import undeclared
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.writer import Writer
from tests.trace.trace_rows import plain_row


def test_a_call_without_an_intent_from_before_it_began_is_told(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    writer = Writer(tmp_path, "r")

    def call(turn: int, index: int, name: str) -> dict[str, Any]:
        return plain_row("tools", agent_id="a", attempt=0, turn=turn, call=index, name=name, started_seconds=turn + 0.5)

    def intent(turn: int, index: int, seconds: float) -> str:
        key = {"agent_id": "a", "attempt": 0, "turn": turn, "started_seconds": seconds}
        return json.dumps({**key, "calls": [{"call": index, "name": "bash", "arguments": {}}]}) + "\n"

    for turn in range(3):
        calls = [call(turn, 0, "read_file"), call(turn, 1, "bash")]
        writer.append(encode_turn(plain_row("turns", agent_id="a", attempt=0, turn=turn), calls))
    (tmp_path / "intents").mkdir()
    file = tmp_path / "intents" / "0-host0-000000.jsonl"
    file.write_text(intent(0, 1, 0.4) + intent(1, 0, 1.4) + intent(2, 1, 2.6))
    assert undeclared(tmp_path, 1) == ["bash ('a', 0, 1, 1)", "bash ('a', 0, 2, 1)"]
    file.write_text(intent(0, 1, 0.4) + intent(1, 1, 1.5) + intent(2, 1, 2.4) + intent(2, 1, 9.0))
    assert undeclared(tmp_path, 1) == []
    file.unlink()
    assert len(undeclared(tmp_path, 1)) == 3
    writer.append(encode("agents", plain_row("agents", agent_id="a", attempt=0, final=True)))
    assert undeclared(tmp_path, 1) == [], "the run is being closed"
