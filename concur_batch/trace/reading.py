"""Reading a run, finished, killed or still running: the Parquet parts and the rows still in the journal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from concur_batch.trace.compaction import merged_segments, segments_in
from concur_batch.trace.files import TraceError
from concur_batch.trace.journal import JOURNAL, SEGMENT_SUFFIX, read_journal
from concur_batch.trace.manifest import read_manifest
from concur_batch.trace.merging import PART_SUFFIX, disturbed, part_of, pending, standing
from concur_batch.trace.narrowing import narrowed
from concur_batch.trace.parts import parse_rows
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.tables import Tables


class Run:
    """A run directory, read only; its tables are where the manifest says. Raises TraceError if `path` has no manifest,
    so is not one."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)
        self._tables = Tables(self.path, self.manifest.get("tables"))

    def table(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        *,
        few: bool = False,
    ) -> pa.Table:
        """All rows of a table that are recorded by now, each once, in no order that means anything.

        The schema is that of SCHEMAS[name], narrowed to `columns`. Raises KeyError for an unknown table and
        TraceError for an unknown column or a damaged file. With `few`, for a filter that finds few rows, it is first
        found out where they are.
        """
        names = _known(name, columns)
        while True:
            # Journal before parts: a segment that is stored meanwhile is then seen as parts, and left out here.
            segments = self._segments(name)
            files = self._files(name)
            try:
                found = self._dataset(name, files, segments, filter if few else None).to_table(
                    columns=names, filter=filter
                )
                found = found.cast(_narrowed(name, names))
            # A run of an older version lacks columns that may not be null: ValueError, as Arrow's own errors are.
            except (ValueError, OSError) as error:
                if disturbed(files, self._tables.sizes(name)):  # what was to be read is gone by now
                    continue
                raise TraceError(f"cannot read table {name} of {self.path}: {error}") from error
            if not disturbed(files, self._tables.sizes(name)):
                return found

    def batches(
        self, name: str, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows that `table` gives, in batches of at most a row group: memory that does not grow with the table.

        Raises what `table` raises, and TraceError at the end where parts were merged meanwhile, as a run's last act is:
        the batches till then are not all, and it must be read again.
        """
        names = _known(name, columns)
        segments = self._segments(name)
        files = self._files(name)
        schema = _narrowed(name, names)
        try:
            for piece in _row_groups(self._dataset(name, files, segments)):
                rows = piece.to_table(schema=SCHEMAS[name], columns=names, filter=filter).cast(schema)
                yield from rows.combine_chunks().to_batches()
        except (ValueError, OSError) as error:
            if not disturbed(files, self._tables.sizes(name)):
                raise TraceError(f"cannot read table {name} of {self.path}: {error}") from error
        if disturbed(files, self._tables.sizes(name)):
            raise TraceError(f"parts of table {name} of {self.path} were merged while they were read; read it again")

    def agents_final(self) -> pa.Table:
        """The final rows of the agents: one for each (task, sample) that has ended."""
        return self.table("agents", filter=pc.field("final"))

    def _dataset(
        self,
        name: str,
        files: Collection[str],
        segments: Sequence[tuple[str, pa.Table]],
        few: pc.Expression | None = None,
    ) -> ds.Dataset:
        """The rows of a table in those of its files and of the segments that hold each of them once; of the files only
        the row groups in which the filter `few` finds a row."""
        parts, rows = self._choose(name, files, segments)
        schema = SCHEMAS[name]
        sources = [ds.dataset(pa.concat_tables([pa.Table.from_batches([], schema), *rows]))]
        if parts:
            paths, filesystem = [self._tables.path(name, part) for part in parts], self._tables.filesystem
            stored = ds.dataset(paths, schema=schema, format="parquet", filesystem=filesystem)
            sources.append(stored if few is None else narrowed(stored, few))
        return ds.dataset(sources)

    def _files(self, name: str) -> Collection[str]:
        """The files of a table at one moment; a single listing beside a merge is not that."""
        files = self._tables.sizes(name)
        while disturbed(files, again := self._tables.sizes(name)):
            files = again
        return again

    def _choose(
        self, name: str, files: Collection[str], segments: Sequence[tuple[str, pa.Table]]
    ) -> tuple[list[str], list[pa.Table]]:
        """The files to read of those of a table, and the rows of the segments that are in none of them."""
        half_merged = {part: segments_in(self._tables, name, part.pending_name) for part in pending(files)}
        parts = standing(files, half_merged)
        stored = merged_segments(self._tables, name, parts) if segments else set()
        waiting = [(part_of(part), rows) for part, rows in segments if part not in files]
        return parts, [rows for part, rows in waiting if part is None or (part.recorder, part.last) not in stored]

    def _segments(self, name: str) -> list[tuple[str, pa.Table]]:
        """The rows of each journal segment, with the name of the part that they will be."""
        found = []
        for segment in sorted((self.path / JOURNAL).glob(f"*{SEGMENT_SUFFIX}")):
            try:
                rows = [row for row in read_journal(segment).rows if row.table == name]
            except FileNotFoundError:
                continue
            found.append((segment.stem + PART_SUFFIX, parse_rows(name, rows, segment)[0]))
        return found


def _row_groups(dataset: ds.Dataset) -> Iterator[ds.Fragment]:
    """The dataset's rows, a row group each. Its own `to_batches` reads ahead of a slow reader, up to a gigabyte."""
    for fragment in dataset.get_fragments():
        if isinstance(fragment, ds.ParquetFileFragment):
            yield from fragment.split_by_row_group()
        else:
            yield fragment


def _known(table: str, columns: Sequence[str] | None) -> list[str]:
    """The columns asked for, by default all. Raises KeyError for the table and TraceError for a column."""
    names = SCHEMAS[table].names
    if unknown := set(columns or ()) - set(names):
        raise TraceError(f"table {table} has no column {', '.join(sorted(unknown))}")
    return list(names if columns is None else columns)


def _narrowed(table: str, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([SCHEMAS[table].field(column) for column in columns])
