from __future__ import annotations

import os
from pathlib import Path

import pytest

from concur_batch.export.publishing import Occupied, publishing
from concur_batch.trace.files import TraceError


def publish(out: Path, content: str = "x") -> None:
    with publishing(out) as staging:
        assert list(staging.iterdir()) == []
        (staging / "data").mkdir()
        (staging / "data" / "file").write_text(content)
        assert not out.exists() or not any(out.iterdir())


def test_a_directory_comes_whole(tmp_path: Path) -> None:
    out = tmp_path / "above" / "out"
    publish(out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert (out / "data" / "file").read_text() == "x"


def test_an_empty_directory_may_be_there_and_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    publish(tmp_path / "link")
    assert (tmp_path / "real" / "data" / "file").exists() and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_what_fails_leaves_nothing(tmp_path: Path, raised: type[BaseException]) -> None:
    with pytest.raises(raised), publishing(tmp_path / "out") as staging:
        (staging / "half").touch()
        raise raised
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(Occupied, match="not empty; remove it, or give another directory"):
        publish(tmp_path / "out")
    with pytest.raises(Occupied):
        publish(tmp_path / "out" / "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "mine"]


def test_what_a_killed_one_has_left_goes_and_a_living_one_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / ".out.tmp").mkdir()
    (tmp_path / ".out.tmp" / "half").touch()
    (tmp_path / ".out.lock").touch()
    with publishing(tmp_path / "out") as staging:
        with pytest.raises(Occupied, match="another command writes"), publishing(tmp_path / "out"):
            pass
        assert staging.is_dir() and list(staging.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=f"cannot write {tmp_path}/out: No space left on device"):
        with publishing(tmp_path / "out"):
            raise OSError(28, os.strerror(28))
    assert list(tmp_path.iterdir()) == []
