"""Segments to Parquet: `<table>/<segment>.parquet`, one part a table and segment.

A part's name follows from its segment, so storing a segment again, after a crash halfway, rewrites the same parts.
The rows are parsed by Arrow straight from the journal's bytes; Python touches no value.
"""

from __future__ import annotations

import binascii
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet

from concur_batch.trace.files import disk_error, replacing
from concur_batch.trace.journal import Row, is_json, read_journal, torn_middle
from concur_batch.trace.merging import PART_SUFFIX
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.tables import Tables

REJECTED = "rejected"

# The rows as they are in the journal: a list is the hexadecimal text of its little-endian items.
_JOURNALED = {
    name: pa.schema([column.with_type(pa.string()) if pa.types.is_list(column.type) else column for column in schema])
    for name, schema in SCHEMAS.items()
}


@dataclass
class Stored:
    """What became of the rows of one or several segments."""

    segments: int = 0
    rows: Counter[str] = field(default_factory=Counter)  # in Parquet, by table
    part_bytes: int = 0
    rejected: int = 0  # rows put aside
    dropped_bytes: int = 0  # of torn tails

    def add(self, other: Stored) -> None:
        self.segments += other.segments
        self.rows.update(other.rows)
        self.part_bytes += other.part_bytes
        self.rejected += other.rejected
        self.dropped_bytes += other.dropped_bytes


def store_segment(tables: Tables, run_dir: Path, segment: Path, merged: Collection[str] = ()) -> Stored:
    """Turns a segment into parts and then deletes it. Rows that do not fit their schema do not hinder the others:
    they go to `<run_dir>/rejected/<segment>.jsonl`, each with the reason. `merged` are the tables in which a merged
    part has the segment's rows already.

    Doing it again after any interruption gives the same files. Raises TraceError: disk full, or a damaged segment,
    which is then left as it is.
    """
    contents = read_journal(segment)
    stored = Stored(segments=1, dropped_bytes=contents.dropped_bytes)
    parsed: dict[str, pa.Table] = {}
    rejected: list[tuple[Row, str]] = []
    for name in SCHEMAS:
        rows = [row for row in contents.rows if row.table == name]
        parsed[name], bad = parse_rows(name, rows, segment)
        rejected += bad
    if rejected:
        stored.rejected = len(rejected)
        with replacing(run_dir / REJECTED / segment.name) as temporary:
            temporary.write_bytes(b"".join(_rejection(row, reason) for row, reason in rejected))
    for name, table in parsed.items():
        if table.num_rows and name not in merged:
            with tables.writing(name, segment.stem + PART_SUFFIX) as temporary:
                with part_writer(temporary, table.schema, lasting=False) as writer:
                    # A segment is bounded in bytes, so is its one row group.
                    writer.write_table(table, row_group_size=table.num_rows)
                stored.part_bytes += temporary.stat().st_size
            stored.rows[name] = table.num_rows
    try:
        segment.unlink()
    except OSError as error:
        raise disk_error("delete", segment, error) from error
    return stored


def parse_rows(table: str, rows: list[Row], segment: Path) -> tuple[pa.Table, list[tuple[Row, str]]]:
    """The rows of one table as Arrow, and those that do not fit its schema, each with the reason.

    Raises TraceError for a row that is not JSON: the segment is damaged.
    """
    schema = SCHEMAS[table]
    if not rows:
        return pa.Table.from_batches([], schema), []
    lines = b"\n".join([row.json for row in rows])
    try:
        parsed = pa.json.read_json(
            pa.BufferReader(lines),
            # In one block by one thread: a segment is small enough, and many small ones take twice the CPU.
            read_options=pa.json.ReadOptions(block_size=len(lines) + 1, use_threads=False),
            parse_options=pa.json.ParseOptions(explicit_schema=_JOURNALED[table], unexpected_field_behavior="error"),
        )
        parsed.validate(full=True)  # UTF-8
        if parsed.num_rows != len(rows):
            raise ValueError("more than one object in a row")
        columns = [
            pa.chunked_array([_lists(chunk, field.type) for chunk in column.chunks], field.type)
            if pa.types.is_list(field.type)
            else column
            for column, field in zip(parsed.columns, schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=schema), []
    except ValueError as error:  # also Arrow's and binascii's own
        if len(rows) == 1:
            if not is_json(rows[0].json):
                raise torn_middle(segment, rows[0].offset) from error
            return pa.Table.from_batches([], schema), [(rows[0], str(error))]
    middle = len(rows) // 2
    first, first_bad = parse_rows(table, rows[:middle], segment)
    second, second_bad = parse_rows(table, rows[middle:], segment)
    return pa.concat_tables([first, second]), first_bad + second_bad


def item_dtype(lists: pa.ListType) -> np.dtype[Any]:
    """The numpy type of a list's items as they are in the journal."""
    return np.dtype("<i4" if lists.value_type == pa.int32() else "<f4")


def _lists(texts: pa.StringArray, lists: pa.ListType) -> pa.Array:
    """Lists from the hexadecimal text of their items, all rows at once; NaN items become null."""
    dtype = item_dtype(lists)
    _, offsets_buffer, digits = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if ((offsets - offsets[0]) % (2 * dtype.itemsize)).any():
        raise ValueError(f"a list that is not of whole {dtype.name}")
    items = binascii.unhexlify(memoryview(digits or b"")[offsets[0] : offsets[-1]])
    values = _array(items, lists.value_type, dtype.itemsize)
    if dtype.kind == "f":
        values = pc.if_else(pc.is_nan(values), pa.nulls(1, lists.value_type)[0], values)
    starts = ((offsets - offsets[0]) // (2 * dtype.itemsize)).tobytes()
    return pa.ListArray.from_arrays(_array(starts, pa.int32(), 4), values, type=lists, mask=texts.is_null())


def _array(content: bytes, type_: pa.DataType, item_bytes: int) -> pa.Array:
    """An array over the bytes as they are (pa.array of numpy would import pandas where it is installed)."""
    return pa.Array.from_buffers(type_, len(content) // item_bytes, [None, pa.py_buffer(content)])


def part_writer(path: Path, schema: pa.Schema, *, lasting: bool = True) -> pa.parquet.ParquetWriter:
    """A writer of Parquet as all parts are. What is not `lasting` waits for the merge, which compresses it: to do so
    before, too, would cost half as much CPU again as storing a part. It is nearly four times as large."""
    if not lasting:
        return pa.parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False)
    # Token ids repeat: with a dictionary they are 5 to 15 % smaller than as plain int32 under zstd, and read faster;
    # DELTA_BINARY_PACKED is twice as large. Other columns are as small without. Level 3 is 3 to 7 % smaller than 2 for
    # texts and hardly for ids, for a sixth more CPU.
    repeated = [
        f"{column.name}.list.element"
        for column in schema
        if pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type)
    ]
    return pa.parquet.ParquetWriter(
        path, schema, compression="zstd", compression_level=2, use_dictionary=repeated or False
    )


def _rejection(row: Row, reason: str) -> bytes:
    return orjson.dumps({"table": row.table, "reason": reason, "row": row.json.decode()}) + b"\n"
