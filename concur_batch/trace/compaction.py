"""Merges the parts of a run's tables, since a long run makes thousands, and compresses them. A kill at any point loses
and doubles no row.

A merged part is written under a name that only readers of ours know, which decides the merge; then the parts that it
replaces are deleted; then it gets the name of a part. So a pattern such as `turns/*.parquet` never finds a row twice,
and finds all of them but while the parts are swapped; `Run` always finds all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

import pyarrow as pa
import pyarrow.parquet

from concur_batch.trace.files import TraceError, disk_error
from concur_batch.trace.merging import Part, from_ranges, groups, part_of, pending, replaced, to_ranges
from concur_batch.trace.parts import part_writer
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.tables import Tables

# Of a merged part. Ten minutes of a very busy recorder, and small enough for any reader.
_MOST_BYTES = 256 << 20
# How many times as small a part becomes when it is merged, and so compressed; seen in `make bench-durability`.
_SHRINKS = 4
# Of Arrow's memory that become one row group; some 20 MB on disk.
_ROW_GROUP_BYTES = 64 << 20
_SEGMENTS = b"concur.segments"


def compact(
    tables: Tables,
    *,
    most_bytes: int = _MOST_BYTES,
    row_group_bytes: int = _ROW_GROUP_BYTES,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Merges the parts of each table into few of about `most_bytes` at most.

    One process at a time, and no recorder at work. Memory is bounded by a row group. `stop` is asked between parts;
    what is merged by then stays so. Raises TraceError, and then every row is still there, once.
    """
    for table in SCHEMAS:
        settle(tables, table)
        sizes = {part: size for name, size in tables.sizes(table).items() if (part := part_of(name))}
        merged = {part: size if part.segment_count else size // _SHRINKS for part, size in sizes.items()}
        for group in groups(merged, most_bytes):
            if not _merge(tables, table, group, row_group_bytes, stop):
                return


def settle(tables: Tables, table: str) -> None:
    """Brings to their end the merges of a table that a killed process had decided. Raises TraceError."""
    for part in pending(names := tables.sizes(table)):
        if part.name in names:  # killed while the object store moved it
            tables.delete(table, [part.pending_name])
        else:
            _swap(tables, table, part, replaced(names, part, segments_in(tables, table, part.pending_name)))


def segments_in(tables: Tables, table: str, name: str) -> frozenset[int]:
    """The numbers of the segments whose rows are in that part, pending or not.

    Raises FileNotFoundError if it is gone by now, and TraceError.
    """
    part = part_of(name)
    if part is not None and not part.segment_count:
        return frozenset((part.last,))
    path = tables.path(table, name)
    try:
        with tables.filesystem.open_input_file(path) as file:
            metadata = pa.parquet.read_metadata(file).metadata
        return from_ranges(metadata[_SEGMENTS].decode())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise disk_error("read", path, error) from error
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise TraceError(f"{path} is damaged: it does not say which segments it holds") from error


def merged_segments(tables: Tables, table: str, names: Iterable[str]) -> set[tuple[str, int]]:
    """Recorder and number of each segment whose rows are in those of the files that are merged parts."""
    names = list(names)
    parts = {part.pending_name: part for part in pending(names)}
    parts |= {name: part for name in names if (part := part_of(name)) is not None and part.segment_count}
    return {(part.recorder, number) for name, part in parts.items() for number in segments_in(tables, table, name)}


def _merge(tables: Tables, table: str, group: list[Part], row_group_bytes: int, stop: Callable[[], bool]) -> bool:
    """False if it was stopped."""
    segments: Set[int] = frozenset().union(*(segments_in(tables, table, part.name) for part in group))
    merged = Part(group[0].recorder, max(segments), len(segments))
    names, schema = [part.name for part in group], SCHEMAS[table]
    try:
        with tables.writing(table, merged.pending_name) as temporary:
            with part_writer(temporary, schema.with_metadata({_SEGMENTS: to_ranges(segments)})) as writer:
                for rows in _gathered(_rows(tables, table, names, stop), row_group_bytes):
                    writer.write_table(rows, row_group_size=rows.num_rows)
    except _Stopped:
        return False
    except pa.ArrowException as error:
        raise TraceError(f"cannot merge parts of {tables.path(table)}: {error}") from error
    _swap(tables, table, merged, names)
    return True


class _Stopped(Exception):
    pass


def _swap(tables: Tables, table: str, merged: Part, old_names: list[str]) -> None:
    tables.delete(table, old_names)
    tables.move(table, merged.pending_name, merged.name)


def _rows(tables: Tables, table: str, names: Iterable[str], stop: Callable[[], bool]) -> Iterator[pa.Table]:
    """The row groups of the parts one by one; a column that a part of an older version has not got is null."""
    schema = SCHEMAS[table]
    for name in names:
        if stop():
            raise _Stopped
        with tables.filesystem.open_input_file(tables.path(table, name)) as file:
            part = pa.parquet.ParquetFile(file)
            if unknown := set(part.schema_arrow.names) - set(schema.names):
                raise TraceError(f"{tables.path(table, name)} has a column that is unknown here: {min(unknown)}")
            for number in range(part.num_row_groups):
                rows = part.read_row_group(number, use_threads=False)
                columns = [
                    rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
                    for field in schema
                ]
                yield pa.Table.from_arrays(columns, schema=schema)


def _gathered(tables: Iterator[pa.Table], least_bytes: int) -> Iterator[pa.Table]:
    """The rows in tables of at least so many bytes of memory, but for the last."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(rows.nbytes for rows in waiting) >= least_bytes:
            yield pa.concat_tables(waiting)
            waiting.clear()
    if waiting:
        yield pa.concat_tables(waiting)
