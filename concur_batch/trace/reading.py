"""Reading a run, finished, killed or still running: the Parquet parts and the rows still in the journal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
        schema = SCHEMAS[name]
        if unknown := set(columns or ()) - set(schema.names):
            raise TraceError(f"table {name} has no column {', '.join(sorted(unknown))}")
        while True:
            # Journal before parts: a segment that is stored meanwhile is then seen as parts, and left out here.
            segments = self._segments(name)
            files = self._files(name)
            try:
                parts, rows = self._choose(name, files, segments)
                sources = [ds.dataset(pa.concat_tables([pa.Table.from_batches([], schema), *rows]))]
                if parts:
                    paths, filesystem = [self._tables.path(name, part) for part in parts], self._tables.filesystem
                    stored = ds.dataset(paths, schema=schema, format="parquet", filesystem=filesystem)
                    sources.append(narrowed(stored, filter) if few and filter is not None else stored)
                found = ds.dataset(sources).to_table(
                    columns=list(columns) if columns is not None else None, filter=filter
                )
                found = found.cast(pa.schema([schema.field(column) for column in found.column_names]))
            # A run of an older version lacks columns that may not be null: ValueError, as Arrow's own errors are.
            except (ValueError, OSError) as error:
                if disturbed(files, self._tables.sizes(name)):  # what was to be read is gone by now
                    continue
                raise TraceError(f"cannot read table {name} of {self.path}: {error}") from error
            if not disturbed(files, self._tables.sizes(name)):
                return found

    def agents_final(self) -> pa.Table:
        """The final rows of the agents: one for each (task, sample) that has ended."""
        return self.table("agents", filter=pc.field("final"))

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
