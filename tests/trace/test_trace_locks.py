"""Locks that cannot be had: a file system without them is one line at the start, and a race for a new file is seen."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest
from trace_rows import part_rows, turn

from concur_batch.driver.directory import make_run_directory
from concur_batch.trace.encode import encode_turn
from concur_batch.trace.ending import finish
from concur_batch.trace.files import TraceError, is_locked, locked
from concur_batch.trace.journal import Journal
from concur_batch.trace.writer import Writer, recover


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(request.param, "ignored")

    monkeypatch.setattr(fcntl, "flock", flock)


LINE = r"cannot lock .*: its file system has no locks \(.+\); set `output` to a local disk, and `storage` to .*"


def test_a_run_does_not_begin_where_no_locks_are(tmp_path: Path, no_locks: None) -> None:
    with pytest.raises(TraceError, match=LINE) as told:
        make_run_directory(tmp_path / "runs", "name", tmp_path)
    assert "\n" not in str(told.value)
    assert [*(tmp_path / "runs").iterdir()] == []


def test_a_journal_does_not_begin_there_and_nothing_is_recovered(tmp_path: Path, no_locks: None) -> None:
    with pytest.raises(TraceError, match=LINE):
        Writer(tmp_path, "n")
    assert [*(tmp_path / "journal").iterdir()] == []
    segment = tmp_path / "journal" / "n-000000.jsonl"  # the run was moved there
    segment.write_bytes(encode_turn(*turn("x", 1)))
    with pytest.raises(TraceError, match=LINE):
        recover(tmp_path)
    with pytest.raises(TraceError, match=LINE):
        finish(tmp_path)
    assert segment.stat().st_size > 0


def test_a_lock_is_one_processs_and_leaves_no_file(tmp_path: Path) -> None:
    with locked(tmp_path / "lock") as first, locked(tmp_path / "lock") as second:
        assert (first, second) == (True, False)
        with pytest.raises(TraceError, match=f"another process is finishing {tmp_path}; wait for it"):
            with locked(tmp_path / ".ending.lock"):
                finish(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_a_new_journal_that_a_recovery_took_for_a_leftover_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, "n")
    real = fcntl.flock

    def recovered_first(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        recover(tmp_path)  # takes the empty file, and deletes it
        fcntl.flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", recovered_first)
    with pytest.raises(TraceError, match="another process recovers this run; try again"):
        writer.swap(writer.new_segment())
    writer.append(encode_turn(*turn("x", 0)))
    writer.swap(writer.new_segment())
    monkeypatch.setattr(fcntl, "flock", recovered_first)
    path = tmp_path / "journal" / "m-000000.jsonl"
    with pytest.raises(TraceError):
        Journal(path)
    assert not path.exists()
    assert recover(tmp_path).live_segments == 2
    assert part_rows(tmp_path, "turns") == []


def test_a_look_at_a_lock_tells_who_holds_it_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)
        assert is_locked(path)
    assert not is_locked(path)
    path.touch()  # left by a process that was killed
    assert not is_locked(path)
    with locked(path) as held:
        assert held


def test_where_nothing_tells_a_look_finds_no_lock(tmp_path: Path, no_locks: None) -> None:
    (tmp_path / "lock").touch()
    assert not is_locked(tmp_path / "lock")
