"""Tables at a URI: a real S3 server on this machine, a directory elsewhere, and a file system in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from trace_rows import turn

from concur_batch.trace.compaction import compact
from concur_batch.trace.encode import encode_turn
from concur_batch.trace.ending import finish
from concur_batch.trace.files import TraceError
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.merging import part_of
from concur_batch.trace.reading import Run
from concur_batch.trace.recorder import Recorder
from concur_batch.trace.tables import Tables, tables_of, tables_uri
from concur_batch.trace.writer import Writer, recover
from tests.s3_server import Server


@pytest.fixture
def uri(s3: Server, request: pytest.FixtureRequest) -> str:
    """A place in the bucket for each test."""
    return s3.uri(f"bucket/{request.node.name}")


def new_run(path: Path, uri: str) -> Path:
    write_manifest(path, {"name": "test", "tables": uri})
    return path


def turns_of(run_dir: Path) -> list[int]:
    return sorted(Run(run_dir).table("turns", columns=["turn"])["turn"].to_pylist())


def names(tables: Tables, table: str = "turns") -> list[str]:
    return sorted(tables.sizes(table))


def test_a_runs_tables_are_under_its_name() -> None:
    assert tables_uri("s3://b/p/?region=x&scheme=http", "r-1") == "s3://b/p/r-1?region=x&scheme=http"
    assert tables_uri("file:///srv/tables", "r-1") == "file:///srv/tables/r-1"
    assert tables_uri("hdfs://host:8020/", "r-1") == "hdfs://host:8020/r-1"


async def test_a_run_in_s3_is_recorded_read_and_finished(s3: Server, uri: str, tmp_path: Path) -> None:
    run_dir = new_run(tmp_path / "driver", uri)
    # A node of its own, without the manifest: it shares no disk with the driver.
    recorders = [Recorder(run_dir, "a", storage=uri, commit_seconds=0.001)]
    recorders.append(Recorder(tmp_path / "node", "b", storage=uri, commit_seconds=0.001))
    for number in range(4):
        for recorder in recorders:
            await recorder.commit(encode_turn(*turn("x", number)))
            await recorder.rotate()
    await recorders[0].commit(encode_turn(*turn("x", 4)))  # in the journal of this node
    assert turns_of(run_dir) == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    totals = await recorders[0].totals()
    assert totals["parquet_rows"] == {"turns": 4, "tools": 3} and totals["part_bytes"] > 1000
    for recorder in recorders:
        await recorder.close()
    place = uri.partition("://")[2].partition("?")[0]
    assert len(s3.objects(place)) == 9 + 5
    assert finish(run_dir) is None
    assert s3.objects(place) == [
        "tools/a-000004.3.parquet", "tools/b-000002.2.parquet", "turns/a-000004.5.parquet", "turns/b-000003.4.parquet",
    ]  # fmt: skip
    assert turns_of(run_dir) == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    assert [path.name for path in run_dir.iterdir()] == ["manifest.json"]
    assert [path.name for path in (tmp_path / "node").iterdir() if any(path.iterdir())] == []
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    assert ds.dataset(f"{path}/turns", filesystem=filesystem, format="parquet").count_rows() == 9  # any reader


def test_recovery_puts_the_same_objects_again(uri: str, tmp_path: Path) -> None:
    run_dir = new_run(tmp_path, uri)
    writer = Writer(run_dir, "n")  # the manifest says where
    for number in range(3):
        writer.append(encode_turn(*turn("x", number)))
    copy = writer.open.path.read_bytes()
    writer.open.close()
    (run_dir / "journal" / ".n-000000.parquet.turns.77.tmp").write_bytes(b"half of what was to be put")
    assert (recover(run_dir).rows, recover(run_dir).rows) == ({"turns": 3, "tools": 3}, {})
    before = {table: tables_of(run_dir).sizes(table) for table in ("turns", "tools")}
    assert [*before["turns"]] == ["n-000000.parquet"] and not [*run_dir.rglob(".*")]
    (run_dir / "journal" / "n-000000.jsonl").write_bytes(copy)  # killed before it was deleted
    assert turns_of(run_dir) == [0, 1, 2]
    recover(run_dir)
    assert {table: tables_of(run_dir).sizes(table) for table in ("turns", "tools")} == before
    assert turns_of(run_dir) == [0, 1, 2]
    assert Writer(run_dir, "n").open.path.name == "n-000001.jsonl"  # the numbers in S3 are taken
    Writer(tmp_path / "other", "n", storage=uri).close()


async def test_what_cannot_be_put_stays_in_the_journal_until_it_can(s3: Server, tmp_path: Path) -> None:
    uri = s3.uri("late/runs")
    run_dir = new_run(tmp_path, uri)
    recorder = Recorder(run_dir, "n", commit_seconds=0.001)
    await recorder.commit(encode_turn(*turn("x", 1)))
    with pytest.raises(
        TraceError, match=r"cannot write s3://late/runs/turns/n-000000\.parquet.*NO_SUCH_BUCKET"
    ) as told:
        await recorder.rotate()
    assert "\n" not in str(told.value)
    assert (await recorder.totals())["unstored_segments"] == 1
    await recorder.commit(encode_turn(*turn("x", 2)))
    s3.make_bucket("late")
    await recorder.close()
    assert names(tables_of(run_dir)) == ["n-000000.parquet", "n-000001.parquet"]
    assert turns_of(run_dir) == [1, 2] and not [*(run_dir / "journal").iterdir()]


class Killed(BaseException):
    pass


class Dying:
    """A file system that ends before the given change, with the parts of S3's move apart."""

    def __init__(self, filesystem: Any, changes: int) -> None:
        self._filesystem, self._left = filesystem, changes
        self.delete_file = self._dying(filesystem.delete_file)
        self.open_output_stream = self._dying(filesystem.open_output_stream)
        self._copy_file = self._dying(filesystem.copy_file)

    def move(self, source: str, target: str) -> None:
        self._copy_file(source, target)
        self.delete_file(source)

    def _dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            if self._left == 0:
                raise Killed
            self._left -= 1
            return call(*arguments)

        return change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)


def test_a_merge_in_s3_that_ends_at_any_step_loses_and_doubles_no_row(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concur_batch.trace.tables._DELETIONS", 1)
    run_dir = new_run(tmp_path, uri)
    writer, written, changes = Writer(run_dir, "n"), 0, 0
    for changes in range(30):  # each time it ends one change later, until it does not
        for _ in range(2):
            writer.append(encode_turn(*turn("x", 3 * written)))
            writer.rotate()
            written += 1
        tables = Tables(run_dir, uri)
        tables.filesystem = Dying(tables.filesystem, changes)
        with suppress(Killed):
            compact(tables)
            break
        assert turns_of(run_dir) == [3 * number for number in range(written)]
        found = [part for name in names(tables) if (part := part_of(name))]
        assert sum(part.segment_count for part in found) <= written  # no pattern finds a row twice
    writer.close()
    assert 7 < changes < 29
    assert finish(run_dir) is None
    assert turns_of(run_dir) == [3 * number for number in range(written)]
    assert names(Tables(run_dir, uri)) == [f"n-{written - 1:06d}.{written}.parquet"]


def test_a_place_is_tried_before_a_run_begins(s3: Server, uri: str, tmp_path: Path) -> None:
    Tables(tmp_path, uri).probe()
    place = uri.partition("://")[2].partition("?")[0]
    assert s3.objects(place) == []
    writer = Writer(tmp_path, "n", storage=uri)
    writer.append(encode_turn(*turn("x", 0)))
    writer.close()
    for bad, why in (
        (uri, "holds the tables of a run already"),
        (s3.uri("absent/runs"), "cannot write .*NO_SUCH_BUCKET"),
        ("nosuch://x/y", "cannot use nosuch://x/y for tables: "),
    ):
        with pytest.raises(TraceError, match=why) as told:
            Tables(tmp_path, bad).probe()
        assert "\n" not in str(told.value)


def test_a_file_uri_is_a_directory_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "else where"
    uri = elsewhere.as_uri()
    run_dir = new_run(tmp_path / "run", uri)
    Tables(run_dir, uri).probe()
    writer = Writer(run_dir, "n")
    for number in (0, 3):
        writer.append(encode_turn(*turn("x", number)))
        writer.rotate()
    writer.close()
    assert [path.name for path in (elsewhere / "turns").iterdir()]
    assert not (run_dir / "turns").exists()
    finish(run_dir)
    assert [path.name for path in (elsewhere / "turns").iterdir()] == ["n-000001.2.parquet"]
    assert turns_of(run_dir) == [0, 3]


def test_a_file_system_without_atomic_puts_gets_a_name_only_when_it_is_whole(tmp_path: Path) -> None:
    tables = Tables(tmp_path)
    tables.uri, tables._root, tables._local = "mock:///runs", "runs", False
    tables.filesystem = pyarrow.fs._MockFileSystem()
    tables.make()
    seen: list[list[str]] = []

    class Watched:
        def move(self, source: str, target: str) -> None:
            seen.append(names(tables))
            filesystem.move(source, target)

        def __getattr__(self, name: str) -> Any:
            return getattr(filesystem, name)

    filesystem, tables.filesystem = tables.filesystem, Watched()
    with tables.writing("turns", "n-000000.parquet") as temporary:
        temporary.write_bytes(b"whole")
    assert [len(found) for found in seen] == [1] and seen[0][0].endswith(".tmp")
    assert tables.sizes("turns") == {"n-000000.parquet": 5}
