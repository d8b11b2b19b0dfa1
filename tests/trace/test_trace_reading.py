from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet
import pytest
from trace_rows import plain_row, turn

from concur_batch.trace import reading
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.files import TraceError
from concur_batch.trace.journal import Contents, read_journal
from concur_batch.trace.manifest import read_manifest, update_manifest, write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.writer import Writer


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    write_manifest(tmp_path / "run", {"name": "test"})
    return tmp_path / "run"


def turns_of(run: Run) -> list[int]:
    return sorted(run.table("turns", columns=["turn"])["turn"].to_pylist())


def test_a_run_without_rows_has_its_schemas(run_dir: Path) -> None:
    run = Run(run_dir)  # no recorder was ever there
    for name, schema in SCHEMAS.items():
        assert run.table(name).schema == schema
        assert run.table(name).num_rows == 0
    Writer(run_dir, "n")
    assert run.agents_final().schema == SCHEMAS["agents"]
    assert run.table("turns", columns=["output_ids", "turn"]).schema.names == ["output_ids", "turn"]


def test_parts_and_the_journal_of_a_living_run_are_read_together(run_dir: Path) -> None:
    first, second = Writer(run_dir, "a"), Writer(run_dir, "b")
    run = Run(run_dir)
    first.append(encode_turn(*turn("x", 1, ids=[])))
    assert turns_of(run) == [1]
    first.rotate()
    assert turns_of(run) == [1]
    second.append(encode_turn(*turn("y", 2)))
    first.append(encode_turn(*turn("x", 3)))
    with first.open.path.open("ab") as file:  # half of the next turn
        file.write(encode_turn(*turn("x", 5))[:-3])
    assert turns_of(run) == [1, 2, 3]
    assert run.table("tools").num_rows == 3
    table = run.table("turns", columns=["agent_id", "input_delta_ids"], filter=pc.field("turn") < 3)
    assert table.sort_by("agent_id").to_pylist() == [
        {"agent_id": "x", "input_delta_ids": []},
        {"agent_id": "y", "input_delta_ids": [2]},
    ]
    for name, schema in SCHEMAS.items():
        assert run.table(name).schema == schema


def test_a_segment_whose_part_is_there_already_is_not_read_again(run_dir: Path) -> None:
    writer = Writer(run_dir, "n")
    writer.append(encode_turn(*turn("x", 2)))
    shutil.copy(writer.open.path, run_dir / "copy")
    writer.close()
    shutil.move(run_dir / "copy", run_dir / "journal" / "n-000000.jsonl")
    next((run_dir / "tools").iterdir()).unlink()  # killed when only the turns part had its name
    run = Run(run_dir)
    assert run.table("turns").num_rows == 1
    assert run.table("tools").num_rows == 2


def test_a_reader_beside_a_writer_that_rotates_sees_each_row_once(run_dir: Path) -> None:
    writer, run = Writer(run_dir, "n"), Run(run_dir)
    appended = 0

    def write() -> None:
        nonlocal appended
        for number in range(120):
            writer.append(encode_turn(*turn("x", number)))
            appended = number + 1
            if number % 3 == 0:
                writer.rotate()

    thread = threading.Thread(target=write)
    thread.start()
    looks = 0
    while thread.is_alive():
        before = appended
        seen = turns_of(run)
        assert seen == list(range(len(seen))) and len(seen) >= before
        looks += 1
    thread.join()
    assert looks > 3
    assert turns_of(run) == list(range(120))


def test_a_segment_stored_while_it_is_about_to_be_read_is_found_in_parquet(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(run_dir, "n")
    writer.append(encode_turn(*turn("x", 0)))

    def rotated_meanwhile(segment: Path) -> Contents:
        writer.rotate()
        return read_journal(segment)

    monkeypatch.setattr(reading, "read_journal", rotated_meanwhile)
    assert turns_of(Run(run_dir)) == [0]
    assert list((run_dir / "turns").iterdir()) == [run_dir / "turns" / "n-000000.parquet"]


def test_final_agents_are_those_of_their_last_attempt(run_dir: Path) -> None:
    writer = Writer(run_dir, "n")
    for attempt, final in ((0, False), (1, True)):
        writer.append(encode("agents", plain_row("agents", attempt=attempt, final=final)))
        writer.rotate()
    agents = Run(run_dir).agents_final()
    assert agents["attempt"].to_pylist() == [1]
    assert agents.schema == SCHEMAS["agents"]


def test_what_is_no_run_is_told_in_one_line(tmp_path: Path, run_dir: Path) -> None:
    with pytest.raises(TraceError, match=f"not a run directory: {tmp_path}/absent: there is no such directory"):
        Run(tmp_path / "absent")
    with pytest.raises(TraceError, match=r"it holds no manifest\.json"):
        Run(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match="not a run directory"):
        Run(tmp_path / "file")
    for content in ("{", "[]"):
        (run_dir / "manifest.json").write_text(content)
        with pytest.raises(TraceError, match="broken manifest"):
            Run(run_dir)


def test_an_unknown_column_or_table_and_a_torn_part_are_told(run_dir: Path) -> None:
    run = Run(run_dir)
    with pytest.raises(TraceError, match="table turns has no column colour"):
        run.table("turns", columns=["turn", "colour"])
    with pytest.raises(KeyError):
        run.table("colours")
    Writer(run_dir, "n")
    (run_dir / "turns" / "n-000009.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(TraceError, match="cannot read table turns") as caught:
        run.table("turns")
    assert "\n" not in str(caught.value)


def test_a_run_that_lacks_what_newer_ones_must_have_is_told(run_dir: Path) -> None:
    writer = Writer(run_dir, "a")
    writer.append(encode_turn(*turn("x", 1)))
    writer.rotate()
    (part,) = (run_dir / "turns").glob("*.parquet")
    pa.parquet.write_table(pa.parquet.read_table(part).drop_columns(["ids_estimated"]), part)
    with pytest.raises(TraceError, match=r"cannot read table turns of .*'ids_estimated' with null values"):
        Run(run_dir).table("turns")


def test_the_manifest_is_replaced_as_a_whole(run_dir: Path) -> None:
    assert read_manifest(run_dir) == {"name": "test"}
    assert update_manifest(run_dir, state="done", name="new") == {"name": "new", "state": "done"}
    assert (run_dir / "manifest.json").read_text() == '{\n  "name": "new",\n  "state": "done"\n}\n'
    with pytest.raises(TypeError):
        update_manifest(run_dir, bad=object())
    assert Run(run_dir).manifest == {"name": "new", "state": "done"}
    assert list(run_dir.iterdir()) == [run_dir / "manifest.json"]
    with pytest.raises(TraceError):
        update_manifest(run_dir / "absent", state="done")


LOAD_DATASET = """
import sys, datasets
turns = datasets.load_dataset("parquet", data_files=sys.argv[1], split="train")
print(len(turns), turns[1]["input_delta_ids"], turns[1]["output_logprobs"])
"""


def test_the_parts_are_read_by_arrow_duckdb_and_datasets(run_dir: Path, tmp_path: Path) -> None:
    writer = Writer(run_dir, "n")
    for number, logprobs in ((0, None), (1, [-0.5, None])):  # all null in the first part
        row, tools = turn("x", number, ids=[number, 2**31 - 1])
        writer.append(encode_turn(row | {"output_logprobs": logprobs}, tools))
        writer.rotate()
    (run_dir / "turns" / ".n-000002.parquet.7.tmp").write_bytes(b"half")  # of a writer at work
    assert ds.dataset(run_dir / "turns", format="parquet").to_table().schema == SCHEMAS["turns"]
    assert ds.dataset(run_dir / "turns", format="parquet").count_rows() == 2
    query = f"select count(*), sum(len(input_delta_ids)) from '{run_dir}/turns/*.parquet'"
    assert duckdb.sql(query).fetchall() == [(2, 4)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD_DATASET, f"{run_dir}/turns/*.parquet"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.split("\n")[-2] == "2 [1, 2147483647] [-0.5, None]"
