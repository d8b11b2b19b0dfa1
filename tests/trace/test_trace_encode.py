from __future__ import annotations

import enum
import math
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_rows import as_stored, plain_row, rows, turn

from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.journal import Row, count_rows
from concur_batch.trace.parts import parse_rows
from concur_batch.trace.schema import SCHEMAS


def parsed(table: str, *lines: bytes) -> pa.Table:
    """The lines as Arrow; none may be rejected."""
    found = []
    for line in lines:
        assert line.startswith(table.encode() + b"\t") and line.endswith(b"\n") and line.count(b"\n") == 1
        found.append(Row(table, line[len(table) + 1 : -1], 0))
    result, rejected = parse_rows(table, found, Path("none"))
    assert rejected == []
    assert result.schema == SCHEMAS[table]
    result.validate(full=True)
    return result


@pytest.mark.parametrize("table", SCHEMAS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_row_of_the_schema_comes_back(table: str, data: st.DataObject) -> None:
    given_rows = data.draw(st.lists(rows(table), min_size=1, max_size=5))
    stored = parsed(table, *(encode(table, row) for row in given_rows)).to_pylist()
    assert stored == [as_stored(table, row) for row in given_rows]


def test_ten_megabytes_of_text_among_short_rows() -> None:
    texts = ["a", "\0😀\n" * 1_700_000, "b"]
    table = parsed("tools", *(encode("tools", plain_row("tools", output=text)) for text in texts))
    assert table["output"].to_pylist() == texts


@pytest.mark.parametrize(
    ("text", "stored"),
    [("a\ud800b", "a\ufffdb"), ("\udc00", "\ufffd"), ("\ud83d\ude00", "😀"), ("\udc80\udc81", "\ufffd\ufffd")],
)
def test_lone_surrogates_are_replaced(text: str, stored: str) -> None:
    row = plain_row("turns", output_text=text, output_ids=np.array([5], np.int32))
    table = parsed("turns", encode("turns", row))
    assert table["output_text"].to_pylist() == [stored]
    assert table["output_ids"].to_pylist() == [[5]]


def test_moments_are_datetimes_or_iso_text_with_a_zone() -> None:
    moment = datetime(2026, 5, 6, 7, 8, 9, 123456, tzinfo=timezone(timedelta(hours=2)))
    for value in (moment, moment.isoformat(), "2026-05-06T05:08:09.123456Z", "20260506T050809.123456+0000"):
        table = parsed("agents", encode("agents", plain_row("agents", ended_at=value)))
        assert table["ended_at"].to_pylist() == [moment.astimezone(UTC)]
    for wrong in ("2026-05-06T05:08:09", datetime(2026, 5, 6), "yesterday"):
        with pytest.raises(ValueError, match=r"agents\.ended_at"):
            encode("agents", plain_row("agents", ended_at=wrong))
    with pytest.raises(TypeError, match=r"agents\.ended_at"):
        encode("agents", plain_row("agents", ended_at=1_700_000_000))


def test_unset_logprobs_and_infinities_in_lists() -> None:
    logprobs = [None, -0.5, -math.inf, math.nan]
    for value in (logprobs, np.array([math.nan, -0.5, -math.inf, math.nan], np.float64)):
        table = parsed("turns", encode("turns", plain_row("turns", output_logprobs=value)))
        assert table["output_logprobs"].to_pylist() == [[None, -0.5, -math.inf, None]]


def test_numpy_scalars_enums_and_strided_ids() -> None:
    class Finish(enum.StrEnum):
        STOP = "stop"

    row = plain_row(
        "turns",
        input_tokens=np.int64(2**40),
        queue_seconds=np.float64(1.5),
        ids_estimated=np.bool_(True),
        finish_reason=Finish.STOP,
        input_delta_ids=np.arange(10, dtype=np.int32)[::3],
        output_ids=(1, 2),
    )
    stored = parsed("turns", encode("turns", row)).to_pylist()[0]
    assert (stored["input_tokens"], stored["queue_seconds"], stored["ids_estimated"]) == (2**40, 1.5, True)
    assert (stored["finish_reason"], stored["input_delta_ids"], stored["output_ids"]) == ("stop", [0, 3, 6, 9], [1, 2])


@pytest.mark.parametrize("table", SCHEMAS)
def test_missing_null_and_unknown_columns_are_named(table: str) -> None:
    encode(table, plain_row(table))  # nullable columns may be left out
    for field in SCHEMAS[table]:
        if not field.nullable:
            row = plain_row(table)
            del row[field.name]
            with pytest.raises(KeyError, match=rf"{table}: missing or null columns \['{field.name}'\]"):
                encode(table, row)
            with pytest.raises(KeyError, match=field.name):
                encode(table, plain_row(table, **{field.name: None}))
    with pytest.raises(KeyError, match=rf"{table}: unknown columns \['colour'\]"):
        encode(table, plain_row(table, colour="red"))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("turn", 1.0),
        ("turn", True),
        ("turn", 2**31),
        ("input_tokens", 2**63),
        ("queue_seconds", math.nan),
        ("queue_seconds", math.inf),
        ("queue_seconds", "1"),
        ("queue_seconds", False),
        ("ids_estimated", 0),
        ("rid", b"bytes"),
        ("rid", 5),
        ("output_ids", "12"),
        ("output_ids", [2**31]),
        ("output_ids", [2**70]),
        ("output_ids", [1.5]),
        ("output_ids", [1, None]),
        ("output_ids", [[1]]),
        ("output_ids", np.array([-(2**31) - 1])),
        ("output_ids", np.array([1.0])),
        ("output_ids", np.array([[1]])),
        ("output_logprobs", ["x"]),
        ("engine_queue_seconds", "x"),
    ],
)
def test_a_value_that_the_column_cannot_hold_is_refused_and_named(column: str, value: object) -> None:
    with pytest.raises((TypeError, ValueError), match=f"turns.{column}"):
        encode("turns", plain_row("turns", **{column: value}))


def test_a_turns_tools_rows_come_first() -> None:
    row, tools = turn("a", 2)
    lines = encode_turn(row, tools)
    assert [line.split(b"\t")[0] for line in lines.splitlines()] == [b"tools", b"tools", b"turns"]
    assert count_rows(lines) == {"tools": 2, "turns": 1}
    assert lines == encode("tools", tools[0]) + encode("tools", tools[1]) + encode("turns", row)
