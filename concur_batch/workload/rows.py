"""Rows of a JSONL, CSV or Parquet file as plain dicts, each with the place that a message can name."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from concur_batch.workload.errors import Problem, shown_path

# A cell of a CSV file may be a whole source file; the csv module's own limit is 128 KiB.
csv.field_size_limit(2**31 - 1)

_NOT_UTF8 = ("the line is not UTF-8", "save the file as UTF-8")


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its number among the rows, from 1, and its line in the file, from 1 (None for Parquet)."""

    number: int
    line: int | None
    columns: dict[str, Any]


def read_rows(file: Path) -> Iterator[Row | Problem]:
    """The rows of a file, told by its suffix, in order; in the place of a bad row, its problem.

    A problem which hides the rest of the file (a broken header, a torn Parquet file) ends the rows.
    """
    match file.suffix.lower():
        case ".jsonl":
            return _jsonl_rows(file)
        case ".csv":
            return _csv_rows(file)
        case _:
            return _parquet_rows(file)


def _jsonl_rows(file: Path) -> Iterator[Row | Problem]:
    number = 0
    with file.open("rb") as stream:
        for line, text in enumerate(stream, 1):
            if line == 1:
                text = text.removeprefix(b"\xef\xbb\xbf")
            if not text.strip():
                continue
            number += 1
            try:
                columns = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                yield _bad_json(file, line, text, error)
                continue
            if not isinstance(columns, dict):
                kind = "a list" if isinstance(columns, list) else "a single value"
                yield Problem(
                    shown_path(file), line, "", f"the line is {kind}, not an object", 'write {"id": ..., ...}'
                )
                continue
            yield Row(number, line, columns)


def _bad_json(file: Path, line: int, text: bytes, error: orjson.JSONDecodeError) -> Problem:
    try:
        text.decode()
    except UnicodeDecodeError:
        return Problem(shown_path(file), line, "", *_NOT_UTF8)
    if not text.endswith(b"\n"):
        return Problem(
            shown_path(file), line, "", f"the last line is torn: {_lower(error.msg)}", "complete or delete it"
        )
    return Problem(
        shown_path(file),
        line,
        f"column {error.colno}",
        f"is not JSON: {_lower(error.msg)}",
        "write one JSON object a line",
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _csv_rows(file: Path) -> Iterator[Row | Problem]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        header: list[str] | None = None
        number, line = 0, 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except UnicodeDecodeError:
                yield Problem(shown_path(file), _undecodable_line(file), "", *_NOT_UTF8)
                return
            except csv.Error as error:
                mend = "close the quoted cell, and double the quotes within it"
                yield Problem(shown_path(file), line, "", f"is not CSV from here on: {error}", mend)
                return
            start, line = line, reader.line_num + 1
            if not cells:
                continue
            if header is None:
                header = cells
                reason = _header_fault(header)
                if reason is not None:
                    yield Problem(shown_path(file), start, "", reason, "give every column a name of its own")
                    return
                continue
            number += 1
            if len(cells) != len(header):
                reason = f"the row has {len(cells)} cell{'s' * (len(cells) != 1)}, the header {len(header)}"
                mend = "write as many, with quotes round a cell which holds a comma"
                yield Problem(shown_path(file), start, "", reason, mend)
                continue
            yield Row(number, start, dict(zip(header, cells, strict=True)))


def _header_fault(header: list[str]) -> str | None:
    if "" in header:
        return "the header has a column without a name"
    twice = next((name for name in header if header.count(name) > 1), None)
    return None if twice is None else f"the header names {twice!r} twice"


def _undecodable_line(file: Path) -> int | None:
    """The first line that is not UTF-8; a stream's own error only knows the place in its buffer."""
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return None


def _parquet_rows(file: Path) -> Iterator[Row | Problem]:
    number = 0
    try:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(batch_size=4096):
                kinds = {field.name: field.type for field in batch.schema}
                for columns in batch.to_pylist():
                    number += 1
                    plain = {name: _plain(value, kinds[name]) for name, value in columns.items()}
                    yield Row(number, None, plain)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"cannot be read as Parquet: {_lower(str(error).splitlines()[0])}"
        yield Problem(shown_path(file), None, f"row {number + 1}" if number else "", reason, "write the file anew")


def _plain(value: Any, kind: pa.DataType) -> Any:
    """An Arrow value as JSON has it: a map is an object, and a struct's null fields are absent.

    All rows of a struct column share its fields, so rows with different keys (files by path) come back with nulls.
    """
    if value is None:
        return None
    if pa.types.is_struct(kind):
        under = {field.name: field.type for field in kind}
        return {name: _plain(item, under[name]) for name, item in value.items() if item is not None}
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return value
