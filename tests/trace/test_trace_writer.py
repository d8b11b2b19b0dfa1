from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson
import pytest
from trace_rows import part_rows, plain_row, turn

from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.files import TraceError
from concur_batch.trace.journal import Journal
from concur_batch.trace.parts import store_segment
from concur_batch.trace.tables import Tables
from concur_batch.trace.writer import Writer, recover


def files(run_dir: Path) -> list[str]:
    return sorted(str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.is_file())


def killed(writer: Writer) -> None:
    """As if its process had been killed: nothing is stored, the lock is gone."""
    writer.open.close()


def test_rotation_makes_one_part_a_table_with_rows_and_deletes_the_segment(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "node-1")
    for number in range(3):
        writer.append(encode_turn(*turn("a", number)))
    writer.rotate()
    assert files(tmp_path) == [
        "journal/node-1-000001.jsonl",
        "tools/node-1-000000.parquet",
        "turns/node-1-000000.parquet",
    ]
    writer.rotate()  # no rows: the same segment stays open
    writer.append(encode("agents", plain_row("agents")))
    writer.close()
    assert files(tmp_path) == [
        "agents/node-1-000001.parquet",
        "tools/node-1-000000.parquet",
        "turns/node-1-000000.parquet",
    ]
    assert writer.stored.rows == {"turns": 3, "tools": 3, "agents": 1}
    assert [row["turn"] for row in part_rows(tmp_path, "turns")] == [0, 1, 2]


def test_a_writer_of_the_same_name_goes_on_with_new_segment_numbers(tmp_path: Path) -> None:
    for number in range(3):
        writer = Writer(tmp_path, "n")
        writer.append(encode_turn(*turn("a", number)))
        killed(writer) if number == 1 else writer.close()
    other = Writer(tmp_path, "n-000007")
    other.append(encode_turn(*turn("b", 0)))
    other.close()
    assert files(tmp_path) == [
        "journal/n-000001.jsonl",
        "tools/n-000002.parquet",
        "turns/n-000000.parquet",
        "turns/n-000002.parquet",
        "turns/n-000007-000000.parquet",
    ]
    assert recover(tmp_path, "n").rows == {"turns": 1, "tools": 1}
    assert sorted(row["turn"] for row in part_rows(tmp_path, "turns")) == [0, 0, 1, 2]


def test_a_segment_is_due_by_rows_bytes_or_age(tmp_path: Path) -> None:
    line = encode("control", plain_row("control"))
    for limits in ({"segment_rows": 2}, {"segment_bytes": len(line) + 1}):
        writer = Writer(tmp_path, "n", **limits)  # type: ignore[arg-type]
        assert not writer.due
        writer.append(line)
        assert not writer.due
        writer.append(line)
        assert writer.due
        writer.close()
    writer = Writer(tmp_path, "n", segment_seconds=0)
    assert not writer.due
    writer.append(line)
    assert writer.due
    writer.rotate()
    assert not writer.due


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "a b", ".."])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="recorder name"):
        Writer(tmp_path / "run", name)
    assert not (tmp_path / "run").exists()


def test_bad_rows_are_put_aside_with_the_reason_and_the_others_are_stored(tmp_path: Path) -> None:
    good = [encode_turn(*turn("a", 3 * number)) for number in range(50)]
    ids = b'"output_ids":"010000000200000003000000"'
    bad = {
        b'turns\t{"agent_id":"x"}\n': "absent",
        good[0].replace(b'"rid":"text"', b'"rid":null'): "null",
        good[0].replace(b'{"agent_id"', b'{"colour":"red","agent_id"'): "unexpected field",
        good[0].replace(ids, b'"output_ids":"0100"'): "not of whole int32",
        good[0].replace(ids, b'"output_ids":"0100000g"'): "hexadecimal",
        good[0].replace(ids, b'"output_ids":[1,2]'): "changed from string to array",
        good[0].replace(b'"turn":0', b'"turn":0.5'): "int32",
    }
    assert len(bad) == 7 and good[0] not in bad
    writer = Writer(tmp_path, "n")
    for index, line in enumerate(bad):
        writer.append(b"".join(good[7 * index : 7 * index + 7]) + line)
    writer.append(good[49])
    writer.rotate()
    assert writer.stored.rows == {"turns": 50} and writer.stored.rejected == 7
    assert [row["turn"] for row in part_rows(tmp_path, "turns")] == list(range(0, 150, 3))
    lines = (tmp_path / "rejected" / "n-000000.jsonl").read_bytes().splitlines()
    for (line, reason), told in zip(bad.items(), map(orjson.loads, lines), strict=True):
        assert (told["table"], told["row"].encode()) == ("turns", line[len(b"turns\t") : -1])
        assert reason in told["reason"], told["reason"]


def test_a_row_in_the_middle_that_is_not_json_is_damage_and_no_part_is_written(tmp_path: Path) -> None:
    first, second, third = (encode_turn(*turn("a", 3 * number)) for number in range(3))
    writer = Writer(tmp_path, "n")
    writer.append(first + second.replace(b'"text"', b'"te\0t"') + third)
    with pytest.raises(TraceError, match=f"n-000000.jsonl is damaged at byte {len(first)}"):
        writer.rotate()
    assert files(tmp_path) == ["journal/n-000000.jsonl", "journal/n-000001.jsonl"]
    writer.open.close()
    # What the message tells to do mends it.
    os.truncate(tmp_path / "journal" / "n-000000.jsonl", len(first))
    assert recover(tmp_path).live_segments == 1  # of this process, never closed
    shutil.copy(tmp_path / "journal" / "n-000000.jsonl", tmp_path / "journal" / "m-000000.jsonl")
    assert recover(tmp_path).rows == {"turns": 1}


def test_text_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    lines = encode_turn(*turn("a", 0))
    writer = Writer(tmp_path, "n")
    writer.append(lines.replace(b'"text"', b'"te\xff\xfe"') + lines)
    with pytest.raises(TraceError, match="damaged at byte 0"):
        writer.rotate()


def test_recovery_stores_what_was_journaled_drops_the_torn_turn_and_removes_temporaries(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "n")
    for number in range(3):
        writer.append(encode_turn(*turn("a", number)))
    killed(writer)
    torn = encode_turn(*turn("a", 5))[:-10]
    with writer.open.path.open("ab") as file:
        file.write(torn)
    for temporary in ("turns/.n-000000.parquet.77.tmp", "rejected/.n-000000.jsonl.7.tmp", ".manifest.json.5.tmp"):
        (tmp_path / temporary).write_bytes(b"half")
    recovered = recover(tmp_path)
    assert recovered.segments == 1
    assert recovered.rows == {"turns": 3, "tools": 3}
    assert recovered.dropped_bytes == len(torn)
    assert recovered.temporaries == 3
    assert files(tmp_path) == ["tools/n-000000.parquet", "turns/n-000000.parquet"]
    assert [(row["turn"], row["call"]) for row in part_rows(tmp_path, "tools")] == [(1, 0), (2, 0), (2, 1)]
    again = recover(tmp_path)
    assert (again.segments, again.rows, again.temporaries) == (0, {}, 0)


def test_a_crash_between_the_parts_and_the_deletion_of_the_segment_doubles_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "n")
    for number in range(3):
        writer.append(encode_turn(*turn("a", number)))
    writer.append(b'agents\t{"agent_id":"x"}\n')
    copy = tmp_path / "copy"
    shutil.copy(writer.open.path, copy)
    writer.close()
    stored = files(tmp_path)
    for lost in (None, "tools", "turns", "rejected"):  # as if killed after any of the renames
        shutil.copy(copy, tmp_path / "journal" / "n-000000.jsonl")
        if lost:
            next((tmp_path / lost).iterdir()).unlink()
        recovered = recover(tmp_path)
        assert (recovered.rows, recovered.rejected) == ({"turns": 3, "tools": 3}, 1)
        assert files(tmp_path) == stored
        assert [row["turn"] for row in part_rows(tmp_path, "turns")] == [0, 1, 2]
        assert len((tmp_path / "rejected" / "n-000000.jsonl").read_bytes().splitlines()) == 1


def test_recovery_leaves_a_living_writer_alone(tmp_path: Path) -> None:
    dead, living = Writer(tmp_path, "dead"), Writer(tmp_path, "living")
    dead.append(encode_turn(*turn("a", 0)))
    living.append(encode_turn(*turn("b", 0)))
    killed(dead)
    temporary = tmp_path / "turns" / ".living-000000.parquet.77.tmp"
    temporary.write_bytes(b"being written")
    recovered = recover(tmp_path)
    assert (recovered.live_segments, recovered.segments, recovered.temporaries) == (1, 1, 0)
    assert temporary.exists()
    living.append(encode_turn(*turn("b", 3)))
    living.close()
    assert [(row["agent_id"], row["turn"]) for row in part_rows(tmp_path, "turns")] == [("a", 0), ("b", 0), ("b", 3)]


def test_a_damaged_segment_does_not_hinder_the_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        writer = Writer(tmp_path, name)
        writer.append(encode_turn(*turn(name, 0)))
        killed(writer)
    damaged = tmp_path / "journal" / "a-000000.jsonl"
    damaged.write_bytes(b"damage\n" + damaged.read_bytes())
    with pytest.raises(TraceError, match=f"{damaged} is damaged at byte 0"):
        recover(tmp_path)
    assert files(tmp_path) == ["journal/a-000000.jsonl", "turns/b-000000.parquet"]


def test_recovery_needs_a_directory_and_nothing_in_it(tmp_path: Path) -> None:
    assert recover(tmp_path).segments == 0
    with pytest.raises(TraceError, match="no such directory"):
        recover(tmp_path / "absent")


def test_a_part_that_cannot_be_written_leaves_the_segment_for_the_next_try(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "n")
    writer.append(encode_turn(*turn("a", 1)))
    writer.sync()
    sealed = writer.swap(writer.new_segment())
    assert isinstance(sealed, Journal)
    (tmp_path / "turns").rmdir()
    with pytest.raises(TraceError, match=r"n-000000\.parquet: No such file or directory"):
        writer.store(sealed)
    (tmp_path / "turns").mkdir()
    writer.store(sealed)
    assert len(part_rows(tmp_path, "turns")) == len(part_rows(tmp_path, "tools")) == 1
    assert files(tmp_path) == ["journal/n-000001.jsonl", "tools/n-000000.parquet", "turns/n-000000.parquet"]


def test_storing_the_same_segment_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = set()
    for name in ("x", "y"):
        writer = Writer(tmp_path / name, "n")
        writer.append(b"".join(encode_turn(*turn("a", number)) for number in range(30)))
        killed(writer)
        store_segment(Tables(tmp_path / name), tmp_path / name, writer.open.path)
        contents.add((tmp_path / name / "turns" / "n-000000.parquet").read_bytes())
    assert len(contents) == 1
