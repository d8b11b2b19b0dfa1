"""Parts merged into few: the same rows before and after, at any kill between, and for whoever reads meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rows import as_stored, part_rows, plain_row, rows, turn

from concur_batch.trace.compaction import compact, segments_in
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.ending import finish
from concur_batch.trace.files import TraceError
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.tables import Tables
from concur_batch.trace.writer import Writer, recover


def parts(run_dir: Path, table: str) -> list[str]:
    return sorted(path.name for path in (run_dir / table).iterdir())


def read(run_dir: Path) -> dict[str, list[tuple[str, int]]]:
    """Agent and turn of each row as `Run` reads it."""
    run = Run(run_dir)
    tables = {name: run.table(name, columns=["agent_id", "turn"]).to_pylist() for name in ("turns", "tools")}
    return {name: sorted((row["agent_id"], row["turn"]) for row in found) for name, found in tables.items()}


def state(run_dir: Path) -> frozenset[tuple[str, str, int]]:
    """Which files are there, however the number of the process is in the name of a temporary one."""
    return frozenset((p.parent.name, p.name.split(".parquet")[0], p.stat().st_size) for p in run_dir.rglob("*.*"))


def make_parts(run_dir: Path, recorder: str, numbers: range) -> None:
    """A part for each turn."""
    writer = Writer(run_dir, recorder)
    for number in numbers:
        writer.append(encode_turn(*turn(recorder, number)))
        writer.rotate()
    writer.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_manifest(tmp_path / "run", {"name": "test"})
    return tmp_path / "run"


def test_a_finished_run_has_few_parts_and_no_journal(run_dir: Path) -> None:
    make_parts(run_dir, "a", range(20))
    make_parts(run_dir, "b", range(5))
    killed = Writer(run_dir, "b")
    killed.append(encode_turn(*turn("b", 5)))
    killed.open.close()
    before = read(run_dir)
    assert len(before["turns"]) == 26
    assert finish(run_dir) is None
    assert sorted(path.name for path in run_dir.iterdir()) == ["agents", "control", "manifest.json", "tools", "turns"]
    assert parts(run_dir, "turns") == ["a-000019.20.parquet", "b-000005.6.parquet"]
    assert parts(run_dir, "tools") == ["a-000019.13.parquet", "b-000005.4.parquet"]  # every third turn has no call
    assert read(run_dir) == before
    assert sorted((row["agent_id"], row["turn"]) for row in part_rows(run_dir, "turns")) == before["turns"]
    assert segments_in(Tables(run_dir), "tools", "b-000005.4.parquet") == {1, 2, 4, 5}
    assert duckdb.sql(f"select count(*) from '{run_dir}/turns/*.parquet'").fetchall() == [(26,)]
    stored = {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.parquet")}
    assert finish(run_dir) is None
    assert {path: path.stat().st_mtime_ns for path in run_dir.rglob("*.parquet")} == stored


def test_a_part_that_is_alone_is_compressed_too(run_dir: Path) -> None:
    writer = Writer(run_dir, "a")
    writer.append(encode_turn(*turn("a", 1, ids=[7] * 100_000)))
    writer.close()
    before = read(run_dir)
    stored = (run_dir / "turns" / "a-000000.parquet").stat().st_size
    assert stored > 400_000
    assert finish(run_dir) is None
    assert parts(run_dir, "turns") == parts(run_dir, "tools") == ["a-000000.1.parquet"]
    assert (run_dir / "turns" / "a-000000.1.parquet").stat().st_size < 30_000
    assert segments_in(Tables(run_dir), "turns", "a-000000.1.parquet") == {0}
    assert read(run_dir) == before


def test_a_run_that_went_on_is_merged_again(run_dir: Path) -> None:
    make_parts(run_dir, "a", range(3))
    finish(run_dir)
    make_parts(run_dir, "a", range(3, 5))
    assert parts(run_dir, "turns") == ["a-000002.3.parquet", "a-000003.parquet", "a-000004.parquet"]
    finish(run_dir)
    assert parts(run_dir, "turns") == ["a-000004.5.parquet"]
    assert read(run_dir)["turns"] == [("a", number) for number in range(5)]


def test_a_kill_at_any_step_loses_and_doubles_no_row(run_dir: Path, tmp_path: Path) -> None:
    make_parts(run_dir, "a", range(3))
    make_parts(run_dir, "b", range(1, 2))
    before = read(run_dir)
    copies = tmp_path / "copies"
    command = [sys.executable, str(Path(__file__).with_name("merge_killed.py")), str(run_dir), str(copies)]
    count = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout)
    found = sorted(copies.iterdir())
    assert len(found) == count > 60
    states = {state(copy): copy for copy in found}  # a kill before a sync leaves what one after it does
    assert len(states) > 20
    for copy in states.values():
        assert read(copy) == before
        for table in before:
            seen = Counter((row["agent_id"], row["turn"], row.get("call")) for row in part_rows(copy, table))
            assert set(seen.values()) <= {1}
        recover(copy)
        assert not [*copy.rglob(".*")]
        for table, rows_before in before.items():
            assert sorted((row["agent_id"], row["turn"]) for row in part_rows(copy, table)) == rows_before
        assert finish(copy) is None
        assert parts(copy, "turns") == ["a-000002.3.parquet", "b-000000.1.parquet"]
        assert read(copy) == before


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_rows_are_equal_before_and_after(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    table = data.draw(st.sampled_from(sorted(SCHEMAS)))
    given_rows = data.draw(st.lists(rows(table), min_size=2, max_size=6))
    writer = Writer(run_dir, "n")
    for row in given_rows:
        writer.append(encode(table, row) if table != "tools" else encode_turn(plain_row("turns"), [row]))
        if data.draw(st.booleans()):
            writer.rotate()
    writer.close()
    before = [path.name for path in (run_dir / table).glob("*.parquet")]
    compact(Tables(run_dir), most_bytes=data.draw(st.sampled_from([1, 30_000, 1 << 30])), row_group_bytes=100)
    assert part_rows(run_dir, table) == [as_stored(table, row) for row in given_rows]
    assert len(parts(run_dir, table)) <= len(before)
    for path in (run_dir / table).iterdir():
        assert pa.parquet.read_schema(path).remove_metadata() == SCHEMAS[table]


def test_a_merged_part_is_bounded_and_its_row_groups_too(run_dir: Path) -> None:
    writer = Writer(run_dir, "n")
    for number in range(30):
        writer.append(encode_turn(*turn("x", 3 * number, ids=list(range(1000)))))
        writer.rotate()
    writer.close()
    size = (run_dir / "turns" / "n-000000.parquet").stat().st_size // 4  # once it is compressed
    compact(Tables(run_dir), most_bytes=10 * size + size // 2, row_group_bytes=7_000)
    merged = sorted((run_dir / "turns").iterdir())
    assert [path.name for path in merged] == [f"n-0000{last}.10.parquet" for last in ("09", "19", "29")]
    for path in merged:
        metadata = pa.parquet.read_metadata(path)
        assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [2] * 5


def test_a_reader_beside_a_merge_sees_each_row_once(run_dir: Path) -> None:
    for recorder in "abcd":
        make_parts(run_dir, recorder, range(6))
    before, run = read(run_dir), Run(run_dir)
    thread = threading.Thread(target=lambda: compact(Tables(run_dir), most_bytes=40_000))
    thread.start()
    looks = 0
    while thread.is_alive():
        assert read(run_dir) == before
        looks += 1
    thread.join()
    assert looks > 0
    assert len(parts(run_dir, "turns")) < 24
    assert run.table("turns").num_rows == 24  # of a reader that was there before


def test_a_stopped_merge_leaves_what_it_has_done(run_dir: Path) -> None:
    make_parts(run_dir, "a", range(6))
    asked = iter([False] * 4 + [True])
    assert finish(run_dir, lambda: next(asked)) is None
    assert len(parts(run_dir, "tools")) == 4 and len(parts(run_dir, "turns")) == 6
    assert not [*run_dir.rglob(".*")]
    assert finish(run_dir) is None
    assert (len(parts(run_dir, "tools")), len(parts(run_dir, "turns"))) == (1, 1)


def test_a_segment_that_comes_back_with_a_lost_disk_is_stored_once(run_dir: Path) -> None:
    make_parts(run_dir, "a", range(1, 4))
    writer = Writer(run_dir, "a")
    writer.append(encode_turn(*turn("a", 5)))  # in no part when the others are merged
    late = writer.open.path
    late.rename(run_dir / late.name)
    writer.open.close()
    finish(run_dir)
    (run_dir / "journal").mkdir()
    for name in ("a-000001.jsonl", late.name):  # the former is in the merged parts: it was not deleted in time
        (run_dir / "journal" / name).write_bytes((run_dir / late.name).read_bytes())
    expected = {"turns": [("a", number) for number in (1, 2, 3, 5)], "tools": [("a", n) for n in (1, 2, 2, 5, 5)]}
    assert read(run_dir) == expected
    recovered = recover(run_dir)
    assert (recovered.segments, recovered.rows) == (2, {"turns": 1, "tools": 2})
    assert read(run_dir) == expected
    assert parts(run_dir, "turns") == ["a-000002.3.parquet", "a-000003.parquet"]


def test_parts_of_an_older_version_are_merged_and_of_a_newer_one_left(run_dir: Path) -> None:
    make_parts(run_dir, "a", range(3))
    old = run_dir / "turns" / "a-000001.parquet"
    table = pa.parquet.read_table(old)
    pa.parquet.write_table(table.drop(["output_logprobs"]), old)
    assert finish(run_dir) is None
    assert [row["output_logprobs"] for row in part_rows(run_dir, "turns")] == [None] * 3
    assert pa.parquet.read_schema(run_dir / "turns" / "a-000002.3.parquet").remove_metadata() == SCHEMAS["turns"]
    make_parts(run_dir, "a", range(3, 5))
    new = run_dir / "turns" / "a-000004.parquet"
    pa.parquet.write_table(table.append_column("colour", pa.nulls(1, pa.string())), new)
    told = finish(run_dir)
    assert told is not None and told.endswith("a-000004.parquet has a column that is unknown here: colour")
    assert len(parts(run_dir, "turns")) == 3


def test_a_torn_part_ends_the_merge_and_a_living_recorder_the_finishing(run_dir: Path) -> None:
    make_parts(run_dir, "a", range(3))
    (run_dir / "turns" / "a-000001.parquet").write_bytes(b"PAR1 torn")
    told = finish(run_dir)
    assert told is not None and "cannot merge parts of" in told and "\n" not in told
    assert parts(run_dir, "turns") == [f"a-00000{number}.parquet" for number in range(3)]
    writer = Writer(run_dir, "a")
    with pytest.raises(TraceError, match=f"1 journals of {run_dir} belong to a living recorder"):
        finish(run_dir)
    writer.close()
