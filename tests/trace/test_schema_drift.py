"""Parts whose columns hold nothing yet, and later something: no reader sees another schema in them, and messages come
back with the keys that they had and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet
import pytest
from trace_rows import plain_row

from concur_batch.agent.claim import Pass
from concur_batch.agent.rows import generation_row
from concur_batch.engine.protocol import Generation
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.ending import finish
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.writer import Writer

ENDS: list[dict[str, Any]] = [
    {"agent_id": "a", "status": "finished", "reward": 1.0, "answer": "42"},
    {"agent_id": "b", "status": "failed", "failure_class": "infrastructure", "error": "HTTP 500: boom"},
    {"agent_id": "c", "status": "limit", "failure_class": "limit", "verify_output": "no"},
]
MESSAGES: list[dict[str, Any]] = [
    {"role": "assistant", "content": "Yes."},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "assistant", "content": "So.", "tool_calls": [], "reasoning_content": "Hm.", "audio": None},
    {"role": "assistant", "content": [{"type": "text", "text": "ü"}], "extra": {"nested": [1, {"deep": None}]}},
]


@pytest.fixture(params=["as they were written", "merged"])
def run_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run with a part for each ending and each message."""
    write_manifest(tmp_path, {})
    writer = Writer(tmp_path, "n")
    for end in ENDS:
        writer.append(encode("agents", plain_row("agents", **end)))
        writer.rotate()
    for number, message in enumerate(MESSAGES):
        told = generation_row({"agent_id": "a"}, Generation([7], "stop", 3, 0, message=message), None, Pass())
        writer.append(encode_turn(plain_row("turns", **told, turn=number), []))
        writer.rotate()
    writer.close()
    if request.param == "merged":
        assert finish(tmp_path) is None
    return tmp_path


def test_parts_of_successes_and_of_failures_are_one_table_for_every_reader(run_dir: Path) -> None:
    columns = ("agent_id", "status", "failure_class", "error", "reward", "answer", "verify_output")
    expected = [{**dict.fromkeys(columns), **end} for end in ENDS]
    parts = sorted((run_dir / "agents").glob("*.parquet"))
    for part in parts:
        assert pa.parquet.read_schema(part).equals(SCHEMAS["agents"]), "though a column holds nothing but nulls"
    together = pa.concat_tables([pa.parquet.read_table(part) for part in parts])
    whole = ds.dataset(run_dir / "agents", format="parquet").to_table()
    named = duckdb.sql(f"select {', '.join(columns)} from '{run_dir}/agents/*.parquet'").fetchall()
    for rows in (
        together.select(columns).to_pylist(),
        whole.select(columns).to_pylist(),
        Run(run_dir).table("agents", columns).to_pylist(),
        [dict(zip(columns, row, strict=True)) for row in named],
    ):
        assert sorted(rows, key=lambda row: str(row["agent_id"])) == expected


def test_a_message_comes_back_with_the_keys_that_it_had_and_no_others(run_dir: Path) -> None:
    found = Run(run_dir).table("turns", ["turn", "output_message"]).sort_by("turn")["output_message"].to_pylist()
    assert [json.loads(message) for message in found] == MESSAGES
    assert [list(json.loads(message)) for message in found] == [list(message) for message in MESSAGES]
