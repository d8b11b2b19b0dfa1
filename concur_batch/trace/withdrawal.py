"""Results that do not count any more: their rows stay, and are final no longer."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from concur_batch.trace.attempts import Key, keys_of
from concur_batch.trace.files import disk_error
from concur_batch.trace.merging import part_of
from concur_batch.trace.parts import part_writer
from concur_batch.trace.tables import Tables


def withdraw(tables: Tables, attempts: Collection[Key]) -> None:
    """Take `final` from the rows of these attempts in `agents`, of which none may be in a journal any more.

    Parts are written anew one by one, each as a whole: every reader finds at most one final row an agent at any time,
    and what a kill leaves undone is done by another call. Raises TraceError.
    """
    if not attempts:
        return
    for name in sorted(filter(part_of, tables.sizes("agents"))):
        path = tables.path("agents", name)
        try:
            with tables.filesystem.open_input_file(path) as file:
                rows = pa.parquet.ParquetFile(file).read()
        except OSError as error:
            raise disk_error("read", path, error) from error
        final = pc.and_not(rows["final"], keys_of(rows, attempts))
        if final.equals(rows["final"]):
            continue
        column = rows.schema.get_field_index("final")
        rows = rows.set_column(column, rows.schema.field(column), final)
        with tables.writing("agents", name) as temporary:
            with part_writer(temporary, rows.schema) as writer:
                writer.write_table(rows)
