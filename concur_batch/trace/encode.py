"""Rows to journal lines. A row is checked against its schema here, at its host, so that what is committed can be
stored: a wrong row fails where it was made and before it is acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from concur_batch.trace.parts import item_dtype
from concur_batch.trace.schema import SCHEMAS

_MAX_FLOAT = float(np.finfo(np.float64).max)
# Nullable columns make a few kinds of rows of each table; beyond so many, each is looked at anew.
_MOST_SHAPES = 1000


class _Column(NamedTuple):
    name: str
    types: tuple[type, ...]
    low: float | None
    high: float | None
    required: bool


def _column(field: pa.Field) -> _Column:
    low: float | None = None
    high: float | None = None
    types: tuple[type, ...]
    if pa.types.is_integer(field.type):
        types = (int, np.integer)
        low, high = -(2 ** (field.type.bit_width - 1)), 2 ** (field.type.bit_width - 1) - 1
    elif pa.types.is_floating(field.type):
        types = (float, int, np.floating, np.integer)
        if not field.nullable:  # JSON has no NaN and no infinity: they become null
            low, high = -_MAX_FLOAT, _MAX_FLOAT
    elif pa.types.is_boolean(field.type):
        types = (bool, np.bool_)
    elif pa.types.is_string(field.type):
        types = (str,)
    elif pa.types.is_timestamp(field.type):
        types = (datetime, str)
    else:
        types = (list, tuple, np.ndarray)
    return _Column(field.name, types, low, high, not field.nullable)


class _Table(NamedTuple):
    names: frozenset[str]
    columns: tuple[_Column, ...]
    bounds: tuple[tuple[str, float, float], ...]  # of columns that have any: name, least, most
    sound: set[tuple[Any, ...]]  # names and types of rows that were found to fit: most rows of a run are alike
    lists: tuple[tuple[str, np.dtype[Any]], ...]  # name, type of the items
    timestamps: tuple[str, ...]


def _table(schema: pa.Schema) -> _Table:
    columns = tuple(_column(field) for field in schema)
    return _Table(
        frozenset(schema.names),
        columns,
        tuple((each.name, each.low, each.high) for each in columns if each.low is not None and each.high is not None),
        set(),
        tuple((f.name, item_dtype(f.type)) for f in schema if pa.types.is_list(f.type)),
        tuple(f.name for f in schema if pa.types.is_timestamp(f.type)),
    )


_OF = {name: _table(schema) for name, schema in SCHEMAS.items()}


def encode(table: str, row: Mapping[str, Any]) -> bytes:
    """One framed line of a table (a key of SCHEMAS).

    Nullable columns may be left out. Lists may be numpy arrays (int32 and float32 are the cheapest), and None or NaN
    in a list of floats is null; a moment is an aware datetime or its ISO text. Lone surrogates in text become U+FFFD.
    A NaN or infinity as a column's value becomes null, or is refused where the column cannot be null.
    Raises KeyError for columns missing or unknown, TypeError or ValueError for a value that the column cannot hold;
    each names table and column.
    """
    spec = _OF[table]
    shape = (*row, *map(type, row.values()))
    if shape not in spec.sound:
        _check_shape(table, spec, row)
        if len(spec.sound) < _MOST_SHAPES:
            spec.sound.add(shape)
    for name, low, high in spec.bounds:
        value = row.get(name)
        if value is not None and not low <= value <= high:
            raise ValueError(f"{table}.{name}: {value} is out of range")
    changed: dict[str, Any] = {}
    for name, dtype in spec.lists:
        if (value := row.get(name)) is not None:
            changed[name] = _list(f"{table}.{name}", value, dtype)
    for name in spec.timestamps:
        if (value := row.get(name)) is not None:
            changed[name] = _moment(f"{table}.{name}", value)
    if changed:
        row = {**row, **changed}
    return b"%b\t%b\n" % (table.encode(), _dumps(row))


def _check_shape(table: str, spec: _Table, row: Mapping[str, Any]) -> None:
    """Whether the row has the columns that are due, with values of their types."""
    if not row.keys() <= spec.names:
        raise KeyError(f"{table}: unknown columns {sorted(row.keys() - spec.names)}")
    for column in spec.columns:
        value = row.get(column.name)
        if value is None:
            if column.required:
                missing = [c.name for c in spec.columns if c.required and row.get(c.name) is None]
                raise KeyError(f"{table}: missing or null columns {missing}")
        elif not isinstance(value, column.types) or (isinstance(value, bool) and bool not in column.types):
            raise TypeError(f"{table}.{column.name}: {type(value).__name__} where {column.types[0].__name__} is due")


def encode_turn(turn_row: Mapping[str, Any], tool_rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The framed lines of one turn, tools rows first: they are committed together, or not at all."""
    return b"".join([*(encode("tools", row) for row in tool_rows), encode("turns", turn_row)])


def _list(where: str, value: Any, dtype: np.dtype[Any]) -> str:
    """A list as hexadecimal text of its little-endian items: many times as fast to parse as numbers in JSON."""
    if not len(value):
        return ""
    try:
        array = np.asarray(value) if dtype.kind == "i" else np.asarray(value, dtype=dtype)
    except (TypeError, ValueError):
        raise TypeError(f"{where}: not a list of {dtype.name}") from None
    if array.ndim != 1 or (dtype.kind == "i" and array.dtype.kind not in "iu"):
        raise TypeError(f"{where}: {array.dtype} of shape {array.shape} where a list of {dtype.name} is due")
    if dtype.kind == "i" and array.dtype != dtype and not -(2**31) <= array.min() <= array.max() < 2**31:
        raise ValueError(f"{where}: an id out of int32's range")
    return np.ascontiguousarray(array, dtype=dtype).tobytes().hex()


def _moment(where: str, value: datetime | str) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{where}: not an ISO time: {str(value)[:40]!r}") from None
    if moment.tzinfo is None:
        raise ValueError(f"{where}: a time without its zone: {moment}")
    return moment.astimezone(UTC)


def _dumps(row: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # lone surrogates
        clean = {name: _clean(value) if isinstance(value, str) else value for name, value in row.items()}
        return orjson.dumps(clean, option=orjson.OPT_SERIALIZE_NUMPY)


def _clean(text: str) -> str:
    """The text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
