from __future__ import annotations

import json
from pathlib import Path

import pyarrow.compute as pc

from concur_batch.bench.export import measure
from concur_batch.bench.many_turns import TURNS, write_many_turns


def test_the_run_is_what_an_export_takes(tmp_path: Path) -> None:
    run = write_many_turns(tmp_path / "run", 6)
    turns = run.table("turns").sort_by([("agent_id", "ascending"), ("turn", "ascending")])
    agents = [f"task-{task}/{sample}" for task, samples in ((0, 4), (1, 2)) for sample in range(samples)]
    assert turns["agent_id"].to_pylist()[::TURNS] == agents
    assert turns["turn"].to_pylist() == list(range(TURNS)) * 6
    assert pc.sum(run.agents_final()["turns"]).as_py() == turns.num_rows
    found = measure(run, "messages", "jsonl", tmp_path / "messages")
    assert found.turns == 120 and found.peak_bytes > 10e6
    (lines,) = (tmp_path / "messages" / "data").iterdir()
    assert found.size_bytes == lines.stat().st_size
    first = json.loads(lines.read_text().splitlines()[0])
    assert len([message for message in first["messages"] if message["role"] == "assistant"]) == TURNS
    assert "rendered as recorded | 6" in (tmp_path / "messages" / "README.md").read_text()
