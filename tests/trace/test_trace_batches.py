from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from trace_rows import turn

from concur_batch.trace.compaction import compact
from concur_batch.trace.encode import encode_turn
from concur_batch.trace.files import TraceError
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.tables import Tables
from concur_batch.trace.writer import Writer


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Nine turns in three parts, and one in the journal."""
    write_manifest(tmp_path / "run", {})
    writer = Writer(tmp_path / "run", "n")
    for number in range(9):
        writer.append(encode_turn(*turn("x", number)))
        if number % 3 == 2:
            writer.rotate()
    writer.append(encode_turn(*turn("x", 9)))
    return Run(tmp_path / "run")


def test_batches_are_the_table_a_part_each(run: Run) -> None:
    batches = list(run.batches("turns"))
    assert sorted(batch.num_rows for batch in batches) == [1, 3, 3, 3]
    assert pa.Table.from_batches(batches).sort_by("turn") == run.table("turns").sort_by("turn")
    few = list(run.batches("turns", ["turn", "agent_id"], pc.field("turn") > 7))
    assert pa.Table.from_batches(few).sort_by("turn").to_pylist() == [
        {"turn": 8, "agent_id": "x"},
        {"turn": 9, "agent_id": "x"},
    ]
    assert list(run.batches("agents")) == []


def test_what_cannot_be_read_is_told(run: Run) -> None:
    with pytest.raises(TraceError, match="table turns has no column colour"):
        list(run.batches("turns", ["colour"]))
    (run.path / "turns" / "n-000001.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(TraceError, match="cannot read table turns"):
        list(run.batches("turns"))


def test_a_merge_while_batches_are_read_is_told_and_never_hides_a_row(run: Run) -> None:
    batches = run.batches("turns")
    next(batches)
    compact(Tables(run.path))
    with pytest.raises(TraceError, match="merged while they were read; read it again"):
        list(batches)
    assert sum(batch.num_rows for batch in run.batches("turns")) == 10


def test_a_slow_reader_is_not_read_ahead_of(tmp_path: Path) -> None:
    write_manifest(tmp_path / "run", {})
    writer = Writer(tmp_path / "run", "n")
    for number in range(30):
        writer.append(encode_turn(*turn("x", number, ids=[7] * 100_000)))
        writer.rotate()
    before = pa.total_allocated_bytes()
    batches = Run(tmp_path / "run").batches("turns", ["input_delta_ids"])
    first = next(batches)
    time.sleep(0.5)  # for whatever would read on behind our back
    assert pa.total_allocated_bytes() - before < 4 * first.nbytes
    assert 1 + len(list(batches)) == 30
