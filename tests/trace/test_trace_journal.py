from __future__ import annotations

import os
from pathlib import Path

import pytest
from trace_rows import plain_row, turn

from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.files import TraceError, replacing
from concur_batch.trace.journal import Journal, read_journal

TURNS = [encode_turn(*turn("a", number)) for number in (0, 2, 1)]


def test_rows_come_back_in_order_with_their_offsets(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    for lines in TURNS:
        journal.append(lines)
    journal.sync()
    assert (journal.size_bytes, journal.rows) == (sum(map(len, TURNS)), 6)
    contents = read_journal(journal.path)
    assert contents.dropped_bytes == 0
    assert [row.table for row in contents.rows] == ["turns", "tools", "tools", "turns", "tools", "turns"]
    content = journal.path.read_bytes()
    for row in contents.rows:
        assert content[row.offset : row.end] == row.table.encode() + b"\t" + row.json + b"\n"


def test_a_tail_torn_at_any_byte_loses_the_turn_it_is_in_and_no_other(tmp_path: Path) -> None:
    turns = TURNS[::2]
    content = b"".join(turns)
    path = tmp_path / "j.jsonl"
    ends = [0]
    for lines in turns:
        ends.append(ends[-1] + len(lines))
    path.write_bytes(content)
    for length in range(len(content), -1, -1):
        os.truncate(path, length)
        whole = max(end for end in ends if end <= length)
        contents = read_journal(path)
        assert b"".join(row.table.encode() + b"\t" + row.json + b"\n" for row in contents.rows) == content[:whole]
        assert contents.dropped_bytes == length - whole


def test_a_last_line_that_does_not_parse_is_dropped_with_its_tools(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    lines = TURNS[1]
    for torn in (
        lines[:-20] + b"\0" * 19 + b"\n",
        lines[:-20] + b"\0" * 18 + b"}\n",
        lines[: lines.rfind(b"turns")] + b"\n",
    ):
        path.write_bytes(TURNS[0] + torn)
        contents = read_journal(path)
        assert [row.table for row in contents.rows] == ["turns"]
        assert contents.dropped_bytes == len(torn)


@pytest.mark.parametrize("damage", [b"\0" * 40 + b"\n", b"turns\t[1]\n", b"other\t{}\n", b"\n"])
def test_damage_before_the_end_is_an_error_with_file_and_offset(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "j.jsonl"
    path.write_bytes(TURNS[0] + damage + TURNS[1])
    with pytest.raises(TraceError, match=rf"{path} is damaged at byte {len(TURNS[0])}"):
        read_journal(path)


@pytest.mark.parametrize(
    "lines",
    [
        b"turns\t{}",
        b"turns\t{}\nturns\t{",
        b"colours\t{}\n",
        b"{}\n",
        b"turns {}\n",
        b"turns\t{}\ntools\t{}\n",
        b"turns\t{}\n\n",
    ],
)
def test_bytes_that_are_not_whole_turns_are_refused_before_they_are_written(tmp_path: Path, lines: bytes) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    with pytest.raises(ValueError):
        journal.append(lines)
    assert journal.path.read_bytes() == b""
    journal.append(TURNS[0])
    assert journal.path.read_bytes() == TURNS[0]


def test_rollback_takes_back_what_is_not_durable(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    journal.append(TURNS[0])
    journal.sync()
    journal.append(TURNS[1])
    journal.rollback()
    assert journal.path.read_bytes() == TURNS[0]
    assert (journal.size_bytes, journal.rows) == (len(TURNS[0]), 1)
    journal.append(TURNS[2])
    journal.sync()
    assert journal.path.read_bytes() == TURNS[0] + TURNS[2]


def test_a_segment_is_created_once_and_in_a_directory_that_is_there(tmp_path: Path) -> None:
    Journal(tmp_path / "j.jsonl")
    with pytest.raises(TraceError, match=r"j\.jsonl: File exists"):
        Journal(tmp_path / "j.jsonl")
    with pytest.raises(TraceError, match="No such file or directory"):
        Journal(tmp_path / "absent" / "j.jsonl")


def test_an_agents_row_may_end_a_commit(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.jsonl")
    counts = journal.append(TURNS[1] + encode("agents", plain_row("agents")) + encode("control", plain_row("control")))
    assert counts == {"tools": 2, "turns": 1, "agents": 1, "control": 1}


def test_a_replaced_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as temporary:
        temporary.write_text("old")
        assert not path.exists()
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    with pytest.raises(TraceError, match="file: No such file or directory"), replacing(path):
        pass
    assert list(tmp_path.iterdir()) == [path]
