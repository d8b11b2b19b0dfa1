"""Reading a run, finished, killed or still running: the Parquet parts and the rows still in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from concur_batch.trace.files import TraceError
from concur_batch.trace.journal import read_journal
from concur_batch.trace.manifest import read_manifest
from concur_batch.trace.parts import JOURNAL, PART_SUFFIX, SEGMENT_SUFFIX, parse_rows, part_path
from concur_batch.trace.schema import SCHEMAS


class Run:
    """A run directory, read only. Raises TraceError if `path` has no manifest, so is not one."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest: dict[str, Any] = read_manifest(self.path)

    def table(self, name: str, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """All rows of a table that are recorded by now, each once, in no order that means anything.

        The schema is that of SCHEMAS[name], narrowed to `columns`. Raises KeyError for an unknown table and
        TraceError for an unknown column or a damaged file.
        """
        schema = SCHEMAS[name]
        if unknown := set(columns or ()) - set(schema.names):
            raise TraceError(f"table {name} has no column {', '.join(sorted(unknown))}")
        # Journal before parts: a segment that is stored meanwhile is then seen as parts, and left out here.
        segments = self._segments(name)
        parts = sorted((self.path / name).glob(f"*{PART_SUFFIX}"))
        rows = [table for part, table in segments if part not in parts]
        try:
            sources = [ds.dataset(pa.concat_tables([pa.Table.from_batches([], schema), *rows]))]
            if parts:
                sources.append(ds.dataset([str(part) for part in parts], schema=schema, format="parquet"))
            found = ds.dataset(sources).to_table(columns=list(columns) if columns is not None else None, filter=filter)
            # A run of an older version lacks columns that may not be null: ValueError, as Arrow's own errors are.
            return found.cast(pa.schema([schema.field(column) for column in found.column_names]))
        except (ValueError, OSError) as error:
            raise TraceError(f"cannot read table {name} of {self.path}: {error}") from error

    def agents_final(self) -> pa.Table:
        """The final rows of the agents: one for each (task, sample) that has ended."""
        return self.table("agents", filter=pc.field("final"))

    def _segments(self, name: str) -> list[tuple[Path, pa.Table]]:
        """The rows of each journal segment, with the path of the part that they will be."""
        found = []
        for segment in sorted((self.path / JOURNAL).glob(f"*{SEGMENT_SUFFIX}")):
            try:
                rows = [row for row in read_journal(segment).rows if row.table == name]
            except FileNotFoundError:
                continue
            found.append((part_path(self.path, name, segment), parse_rows(name, rows, segment)[0]))
        return found
