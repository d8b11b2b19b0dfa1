"""A disk that is really full (a small tmpfs), or read-only: one clear error, nothing torn, and on it goes after."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from trace_rows import part_rows, turn

from concur_batch.driver.directory import make_run_directory
from concur_batch.trace.encode import encode_turn
from concur_batch.trace.ending import finish
from concur_batch.trace.files import TraceError
from concur_batch.trace.intents import Intents, intent_files
from concur_batch.trace.journal import read_journal
from concur_batch.trace.manifest import read_manifest, write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.recorder import Recorder
from concur_batch.trace.tables import tables_of
from concur_batch.trace.writer import Writer, recover


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the space that is left."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\1" * 512)
        except OSError:
            return ballast


def big_turn(number: int) -> bytes:
    row, tools = turn("a", number)
    return encode_turn(row | {"output_text": os.urandom(5000).hex()}, tools)


async def test_commits_fail_while_the_disk_is_full_and_work_again_after(small_disk: Path) -> None:
    run_dir = small_disk / "run"
    recorder = Recorder(run_dir, "n", commit_seconds=0.001)
    committed = []
    for number in range(20):
        await recorder.commit(big_turn(number))
        committed.append(number)
    ballast = fill(small_disk)
    number = 20
    with pytest.raises(TraceError, match=r"run/journal/n-000000.jsonl: No space left on device"):
        for number in range(20, 30):  # the last page has room for a little more
            await recorder.commit(big_turn(number))
            committed.append(number)
    results = await asyncio.gather(*(recorder.commit(big_turn(n)) for n in range(50, 55)), return_exceptions=True)
    assert all(isinstance(result, TraceError) for result in results)
    contents = read_journal(run_dir / "journal" / "n-000000.jsonl")
    assert contents.dropped_bytes == 0
    assert sum(row.table == "turns" for row in contents.rows) == len(committed)

    with pytest.raises(TraceError, match="No space left on device"):
        await recorder.rotate()
    assert list(run_dir.rglob(".*")) == []

    ballast.unlink()
    await recorder.commit(big_turn(number))
    await recorder.rotate()
    await recorder.commit(big_turn(60))
    await recorder.close()
    expected = [*committed, number, 60]
    assert sorted(row["turn"] for row in part_rows(run_dir, "turns")) == expected
    assert len(part_rows(run_dir, "tools")) == sum(n % 3 for n in expected)


def test_a_part_or_manifest_that_does_not_fit_leaves_what_was_there(small_disk: Path) -> None:
    write_manifest(small_disk, {"state": "old"})
    writer = Writer(small_disk, "n")
    writer.append(b"".join(big_turn(number) for number in range(20)))
    writer.sync()
    ballast = fill(small_disk)
    with pytest.raises(TraceError, match="parquet: No space left on device"):
        writer.close()
    with pytest.raises(TraceError, match=r"manifest\.json: No space left on device"):
        write_manifest(small_disk, {"state": "new" * 10_000})
    assert read_manifest(small_disk) == {"state": "old"}
    with pytest.raises(TraceError, match="No space left on device"):
        recover(small_disk)
    assert list(small_disk.rglob(".*")) == [] == list(small_disk.rglob("*.parquet"))
    ballast.unlink()
    assert recover(small_disk).rows == {"turns": 20, "tools": 19}


def test_a_read_only_disk_is_told(small_disk: Path) -> None:
    writer = Writer(small_disk, "n")
    writer.append(big_turn(0))
    writer.open.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(TraceError, match=r"journal/n-000001\.jsonl: Read-only file system"):
        Writer(small_disk, "n")
    with pytest.raises(TraceError, match=r"journal/n-000000\.jsonl: Read-only file system"):
        recover(small_disk)
    with pytest.raises(TraceError, match=r"manifest\.json: Read-only file system"):
        write_manifest(small_disk, {})
    with pytest.raises(TraceError, match="run: Read-only file system"):
        Writer(small_disk / "run", "n")


def test_a_merge_that_does_not_fit_leaves_the_parts(small_disk: Path) -> None:
    write_manifest(small_disk, {})
    writer = Writer(small_disk, "n")
    for number in range(6):
        writer.append(big_turn(number))
        writer.rotate()
    writer.close()
    ballast = fill(small_disk)
    told = finish(small_disk)
    assert told is not None and told.endswith("No space left on device") and "\n" not in told
    assert len(list((small_disk / "turns").iterdir())) == 6
    assert Run(small_disk).table("turns").num_rows == 6
    ballast.unlink()
    assert finish(small_disk) is None
    assert [path.name for path in (small_disk / "turns").iterdir()] == ["n-000005.6.parquet"]
    assert sorted(row["turn"] for row in part_rows(small_disk, "turns")) == [*range(6)]


def test_a_full_disk_on_the_way_to_elsewhere_is_told_and_the_rows_wait(small_disk: Path, tmp_path: Path) -> None:
    uri = (tmp_path / "elsewhere").as_uri()
    writer = Writer(small_disk / "run", "n", storage=uri)
    writer.tables._local = False  # as an object store, which gets whole files from this disk
    writer.append(big_turn(1))
    ballast = fill(small_disk)
    with pytest.raises(TraceError, match=r"run/journal/\.n-000000\..*: No space left on device"):
        writer.close()
    assert list((small_disk / "run").rglob(".*")) == [] == list((tmp_path / "elsewhere").rglob("*.parquet"))
    ballast.unlink()
    assert recover(small_disk / "run", storage=uri).rows == {"turns": 1, "tools": 1}
    assert [*tables_of(small_disk / "run", uri).sizes("turns")] == ["n-000000.parquet"]


async def test_intents_wait_while_the_disk_is_full_and_none_is_torn(small_disk: Path) -> None:
    run_dir = small_disk / "run"
    intents = Intents(run_dir, "host0", 0, lambda number: False)

    async def declare(number: int) -> int:
        row = {"agent_id": f"a{number}", "attempt": 0, "turn": 0, "calls": [os.urandom(3000).hex()]}
        await intents.declare(f"a{number}", 0, row)
        return number

    def there() -> set[int]:
        content = b"".join(path.read_bytes() for path in intent_files(run_dir))
        return {int(orjson.loads(line)["agent_id"][1:]) for line in content.splitlines()}

    ballast = fill(small_disk)
    waiting = [asyncio.create_task(declare(0))]
    while intents.last_error is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert str(intents.last_error).endswith("No space left on device"), "not even the directory has room"
    ballast.unlink()
    async with asyncio.timeout(30):
        assert (await waiting[0], intents.last_error) == (0, None)
    ballast = fill(small_disk)
    waiting = [asyncio.create_task(declare(number)) for number in range(1, 6)]
    while intents.last_error is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert re.fullmatch(
        r"cannot append to intents .*/run/intents/0-host0-\d{6}\.jsonl: No space left on device",
        str(intents.last_error),
    )
    assert ([task.done() for task in waiting], there()) == ([False] * 5, {0})
    ballast.unlink()
    async with asyncio.timeout(30):
        assert await asyncio.gather(*waiting) == [*range(1, 6)]
    assert there() == {*range(6)}
    await intents.close()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory with a run in it that was killed; root minds no modes, so it is mounted on itself."""
    disk = tmp_path / "read-only"
    writer = Writer(disk / "run", "n")
    writer.append(big_turn(1))
    writer.open.close()
    write_manifest(disk / "run", {})
    for command in (["--bind", str(disk), str(disk)], ["-o", "remount,bind,ro", str(disk)]):
        mounted = subprocess.run(["mount", *command], capture_output=True, text=True)
        if mounted.returncode:
            pytest.skip(f"a bind mount is not permitted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_in_a_read_only_directory_no_run_begins_or_is_mended_and_all_is_read(read_only: Path, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=f"cannot make the run directory {read_only}: Read-only file system"):
        make_run_directory(read_only, "name", tmp_path)
    with pytest.raises(TraceError, match="Read-only file system"):
        Recorder(read_only / "run", "n")
    with pytest.raises(TraceError, match=r"run/\.ending\.lock: Read-only file system"):
        finish(read_only / "run")
    assert Run(read_only / "run").table("turns")["turn"].to_pylist() == [1]
    subprocess.run(["mount", "-o", "remount,bind,rw", str(read_only)], check=True)
    assert finish(read_only / "run") is None
    assert [row["turn"] for row in part_rows(read_only / "run", "turns")] == [1]
