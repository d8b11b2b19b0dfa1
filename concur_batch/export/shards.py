"""The files of a data set: shards of about one size, named as `datasets` and the Hugging Face Hub find them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import orjson
import pyarrow as pa

from concur_batch.export.columns import as_batch
from concur_batch.export.form import Record
from concur_batch.export.split import DATA
from concur_batch.trace.parts import part_writer

Kind = Literal["parquet", "jsonl"]
KINDS: tuple[Kind, ...] = get_args(Kind)

# Of Arrow's memory that become one row group, as in the run's own parts; and of tokens whose records are made into
# Arrow together: some 10 MB.
_GROUP_BYTES = 32 << 20
_STEP_TOKENS = 1 << 20
_STEP_RECORDS = 1000


class Shards:
    """The shards of one split, written one after the other below `directory`.

    A shard ends once it has `shard_bytes` on disk, so it is larger by at most a row group or a record. The same records
    give the same files. Raises OSError.
    """

    def __init__(self, directory: Path, split: str, schema: pa.Schema, kind: Kind, shard_bytes: int) -> None:
        self.records = 0
        self._make = _Parquet if kind == "parquet" else _Jsonl
        self._paths: list[Path] = []
        self._directory, self._split, self._schema, self._kind = directory / DATA, split, schema, kind
        self._shard_bytes = shard_bytes
        self._open: _File | None = None

    def add(self, records: Sequence[Record], tokens: int) -> None:
        """Write the records of one trajectory of so many tokens."""
        if not records:
            return
        self.records += len(records)
        if self._open is None:
            self._directory.mkdir(exist_ok=True)
            self._paths.append(self._directory / f"{self._split}-{len(self._paths):05d}.{self._kind}")
            self._open = self._make(self._paths[-1], self._schema, self._shard_bytes)
        self._open.write(records, tokens)
        if self._open.size_bytes >= self._shard_bytes:
            self._end()

    def close(self) -> list[Path]:
        """End the last shard, and give all of them their names, which tell how many they are."""
        self._end()
        count = len(self._paths)
        return [
            path.rename(path.with_name(f"{self._split}-{number:05d}-of-{count:05d}.{self._kind}"))
            for number, path in enumerate(self._paths)
        ]

    def _end(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None


class _File(Protocol):
    size_bytes: int
    """On disk by now."""

    def write(self, records: Sequence[Record], tokens: int) -> None: ...

    def close(self) -> None: ...


class _Jsonl:
    """A record a line; numpy arrays are lists."""

    def __init__(self, path: Path, schema: pa.Schema, shard_bytes: int) -> None:
        self.size_bytes = 0
        self._file = path.open("wb")

    def write(self, records: Sequence[Record], tokens: int) -> None:
        for record in records:
            line = orjson.dumps(dict(record), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
            self.size_bytes += self._file.write(line)

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """Records wait until they are worth a row group."""

    def __init__(self, path: Path, schema: pa.Schema, shard_bytes: int) -> None:
        self.size_bytes = 0
        self._path, self._schema = path, schema
        self._writer = part_writer(path, schema)
        self._group_bytes = min(_GROUP_BYTES, shard_bytes)
        self._step_tokens = min(_STEP_TOKENS, shard_bytes // 16)
        self._records: list[dict[str, Any]] = []
        self._tokens = 0
        self._batches: list[pa.RecordBatch] = []

    def write(self, records: Sequence[Record], tokens: int) -> None:
        self._records += map(dict, records)
        self._tokens += tokens
        if self._tokens >= self._step_tokens or len(self._records) >= _STEP_RECORDS:
            self._convert()
            if sum(batch.nbytes for batch in self._batches) >= self._group_bytes:
                self._write_group()

    def close(self) -> None:
        self._convert()
        self._write_group()
        self._writer.close()

    def _convert(self) -> None:
        if self._records:
            self._batches.append(as_batch(self._records, self._schema))
        self._records, self._tokens = [], 0

    def _write_group(self) -> None:
        if self._batches:
            rows = pa.Table.from_batches(self._batches)
            self._writer.write_table(rows, row_group_size=rows.num_rows)
            self._batches = []
            self.size_bytes = self._path.stat().st_size
