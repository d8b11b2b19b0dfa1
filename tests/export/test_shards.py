from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest

from concur_batch.export.shards import Kind, Shards

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float32())),
    ]
)
TOKENS = 2000


def write(directory: Path, kind: Kind, count: int, shard_bytes: int) -> list[Path]:
    directory.mkdir()
    shards = Shards(directory, "train", SCHEMA, kind, shard_bytes)
    for number in range(count):
        ids = np.random.default_rng(number).integers(0, 2**31 - 1, TOKENS, np.int32)
        shards.add([{"number": number, "input_ids": ids, "logprobs": None if number % 2 else [-0.5]}], TOKENS)
    return shards.close()


def read(paths: list[Path], kind: Kind) -> list[dict[str, object]]:
    if kind == "parquet":
        tables = [pa.parquet.read_table(path) for path in paths]
        assert all(table.schema.equals(SCHEMA) for table in tables)
        return [row for table in tables for row in table.to_pylist()]
    return [orjson.loads(line) for path in paths for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_records_lie_in_order_in_shards_of_about_one_size(kind: Kind, tmp_path: Path) -> None:
    paths = write(tmp_path / "out", kind, 200, 300_000)
    count = len(paths)
    assert 4 < count < 20
    assert [str(path.relative_to(tmp_path / "out")) for path in paths] == [
        f"data/train-{number:05d}-of-{count:05d}.{kind}" for number in range(count)
    ]
    assert sorted((tmp_path / "out" / "data").iterdir()) == paths
    for path in paths[:-1]:
        assert 300_000 <= path.stat().st_size < 700_000
    rows = read(paths, kind)
    assert [row["number"] for row in rows] == list(range(200))
    assert rows[7] == {
        "number": 7,
        "input_ids": np.random.default_rng(7).integers(0, 2**31 - 1, TOKENS, np.int32).tolist(),
        "logprobs": None,
    }
    assert rows[8]["logprobs"] == [-0.5]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_same_records_are_the_same_bytes(kind: Kind, tmp_path: Path) -> None:
    first, second = (write(tmp_path / name, kind, 50, 100_000) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_split_without_records_has_no_file(tmp_path: Path) -> None:
    assert write(tmp_path / "out", "parquet", 0, 1000) == []
    assert list((tmp_path / "out").iterdir()) == []


def test_a_shard_ends_only_where_a_record_follows(tmp_path: Path) -> None:
    line = orjson.dumps({"number": 0, "input_ids": [1], "logprobs": None}) + b"\n"
    shards = Shards(tmp_path, "train", SCHEMA, "jsonl", len(line))
    for _ in range(2):
        shards.add([orjson.loads(line)], 1)
        shards.add([], 0)
    assert [path.read_bytes() for path in shards.close()] == [line, line]
    assert shards.records == 2
