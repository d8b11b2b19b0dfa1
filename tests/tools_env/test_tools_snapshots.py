from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.tools_env.support import Agent
from tools_env.archive import pack, scan, unpack
from tools_env.catalogue import CATALOGUE
from tools_env.sandbox import SandboxEnvironment
from tools_env.snapshots import Snapshots
from tools_env.spec import StateLost
from tools_env.trees import remove_tree

Shape = dict[str, tuple[object, ...]]


def shape(workspace: Path) -> Shape:
    """All that a snapshot promises to keep: kind, mode, time and content of every name, and which are one file."""
    found: Shape = {}
    inodes: dict[int, str] = {}
    for path in (workspace, *sorted(workspace.rglob("*"))):
        status, name = path.lstat(), str(path.relative_to(workspace))
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)  # noqa: PTH115 - as it is, not made a tidy path
        elif path.is_file():
            content = path.read_bytes()
        same = None if path.is_dir() and not path.is_symlink() else inodes.setdefault(status.st_ino, name)
        found[name] = (oct(status.st_mode), status.st_mtime_ns, content, same)
    return found


def there_and_back(workspace: Path, owner: int | None = None) -> Path:
    archive, copy = workspace.with_name("archive.tar"), workspace.with_name("copy")
    with archive.open("wb") as file:
        pack(workspace, file)
    copy.mkdir(0o700)
    with archive.open("rb") as file:
        unpack(file, copy, owner)
    return copy


def test_everything_that_a_workspace_may_hold_comes_back(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "deep" / "er").mkdir(parents=True)
    (workspace / "empty").mkdir(0o500)
    (workspace / "deep" / "er" / "file").write_bytes(b"\0\1 text\n")
    (workspace / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (workspace / "deep" / "run.sh").chmod(0o4755)
    (workspace / "locked").write_text("nobody reads me")
    (workspace / "locked").chmod(0)
    (workspace / "to nowhere").symlink_to("../../etc/passwd")
    (workspace / "to a directory").symlink_to("deep")
    os.link(workspace / "deep" / "er" / "file", workspace / "same file")
    os.mkfifo(workspace / "fifo", 0o640)
    (workspace / ("n" * 255)).write_text("a long name")
    Path(os.fsdecode(os.fsencode(workspace) + b"/not \xff utf-8\n")).write_text("x")
    with (workspace / "holes").open("wb") as file:
        file.seek(10 << 20)
        file.write(b"in the middle")
        file.truncate(20 << 20)
    with (workspace / "one hole").open("wb") as file:
        file.truncate(1 << 20)
    os.utime(workspace / "deep" / "er", ns=(1, 1_234_567_890_123_456_789))
    os.utime(workspace, ns=(1, 1_111_111_111_000_000_001))
    before = shape(workspace)
    copy = there_and_back(workspace)
    assert shape(copy) == before
    assert (tmp_path / "archive.tar").stat().st_size < 1 << 20, "holes are not stored"
    assert (copy / "holes").stat().st_blocks * 512 < 1 << 20, "and are holes again"
    listed = subprocess.run(["tar", "tvf", tmp_path / "archive.tar"], capture_output=True, check=True).stdout
    assert b" 20971520 " in listed, "any tar reads it"


_NAMES = st.sampled_from(["a", "b", "ü", " ", "c.txt"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(_PATHS, st.binary(max_size=2000) | st.none(), st.integers(0, 0o7777), st.integers(0, 2**61))),
)
def test_any_tree_comes_back(tmp_path: Path, made: list[tuple[str, bytes | None, int, int]]) -> None:
    for name in ("workspace", "copy"):
        remove_tree(str(tmp_path / name))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    for path, content, mode, moment_ns in made:
        target = workspace / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                target.mkdir()
            else:
                target.write_bytes(content)
            target.chmod(mode)
            os.utime(target, ns=(0, moment_ns))
        except OSError:
            continue
    before = shape(workspace)
    assert shape(there_and_back(workspace)) == before


def test_a_scan_sees_every_change_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("abc")
    before = scan(tmp_path)
    file.read_text()
    list(tmp_path.iterdir())
    assert scan(tmp_path) == before
    time.sleep(0.02)
    times = file.stat()
    file.write_text("abd")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert scan(tmp_path).digest != before.digest, "the same size and time, another content"
    before = scan(tmp_path)
    file.chmod(0o600)
    assert scan(tmp_path).digest != before.digest


def saved_files(directory: Path) -> set[str]:
    return {path.stem for path in directory.glob("*")}


def test_a_snapshot_is_made_of_a_change_only_and_goes_once_a_later_one_is_on_record(tmp_path: Path) -> None:
    workspace, saved = tmp_path / "workspace", tmp_path / "saved" / "a"
    workspace.mkdir()
    (workspace / "f").write_text("1")
    time.sleep(0.02)
    snapshots = Snapshots(saved, workspace, "0")
    snapshots.touch()
    assert snapshots.save("0") == "0"
    assert not saved.exists(), "nothing has changed"
    (workspace / "f").write_text("2")
    assert snapshots.save("0") == "0", "nothing said that it might"
    marks = []
    for text in "34":
        snapshots.touch()
        (workspace / "f").write_text(text)
        marks.append(snapshots.save("0"))
    assert saved_files(saved) == set(marks)
    assert snapshots.save(marks[1]) == marks[1]
    assert saved_files(saved) == {marks[1]}


def test_what_is_changed_again_within_the_clocks_step_is_saved_again(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    snapshots = Snapshots(tmp_path / "saved", workspace, "0")
    snapshots.touch()  # at once: the workspace has just been made
    assert snapshots.save("0") != "0"


async def test_a_session_goes_on_in_another_environment_as_it_was_saved(tmp_path: Path) -> None:
    root = tmp_path / "root"
    one = SandboxEnvironment(root, ["bash", "write_file", "read_file", "submit"])
    agent = Agent(await one.open("t/0", {"f": "as it began"}))
    first = await agent.session.save("0")
    assert first == "0"
    await agent.bash(command="mkdir d; echo 1 >d/x; ln -s d link; chmod 700 d; echo gone >/tmp/outside")
    kept = await agent.session.save(first)
    await agent.read_file(path="d/x")
    assert await agent.session.save(kept) == kept, "reading changes nothing"
    await agent.write_file(path="later", content="not on record")
    await agent.session.save(kept)
    before = {name: facts for name, facts in shape(agent.workspace).items() if name not in (".", "later")}
    await one.close()

    two = SandboxEnvironment(root, ["bash", "write_file", "read_file", "submit"])
    again = Agent(await two.open("t/0", {"f": "as it began"}, kept))
    found = shape(again.workspace)
    assert {name: facts for name, facts in found.items() if name != "."} == before
    assert len(list((root / "saved").glob("*/*"))) == 1, "what was not on record is removed"
    done = await again.bash(command="cat link/x f; echo 2 >>d/x; cat d/x; ls -A /tmp")
    assert done.output == "1\nas it began1\n2\n", "the agent owns its files as before, and /tmp was never kept"
    await two.close()
    await two.forget("t/0")
    assert not list((root / "saved").glob("*"))


async def test_what_is_said_to_have_no_effects_has_none(tmp_path: Path) -> None:
    calls = {
        "read_file": {"path": "d/f"},
        "list_files": {},
        "search_files": {"pattern": "x"},
        "submit": {"answer": "x"},
    }
    assert calls.keys() == {name for name, spec in CATALOGUE.items() if not spec.has_effects}
    environment = SandboxEnvironment(tmp_path, [*CATALOGUE])
    agent = Agent(await environment.open("a", {"d/f": "x\n"}))
    before = shape(agent.workspace)
    for name, arguments in calls.items():
        assert (await agent.session.call(name, arguments)).status == "ok"
    assert shape(agent.workspace) == before
    await environment.close()


async def test_a_snapshot_that_is_gone_or_torn_is_told(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path / "root", ["bash"])
    agent = Agent(await environment.open("a", {}))
    await agent.bash(command="head -c 100000 /dev/urandom >f")
    mark = await agent.session.save("0")
    await agent.session.close()
    (file,) = (tmp_path / "root" / "saved").glob("*/*")
    os.truncate(file, 50_000)
    with pytest.raises(StateLost, match="damaged"):
        await environment.open("a", {}, mark)
    file.unlink()
    with pytest.raises(StateLost, match="gone"):
        await environment.open("a", {}, mark)
    fresh = Agent(await environment.open("a", {"f": "x"}))
    assert (fresh.workspace / "f").read_text() == "x"
    await environment.close()


async def test_a_snapshot_that_cannot_be_written_leaves_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path / "root", ["bash"])
    agent = Agent(await environment.open("a", {}))
    await agent.bash(command="echo x >f")
    saved = tmp_path / "root" / "saved"
    saved.write_text("in the way")
    with pytest.raises(OSError, match=r"File exists|Not a directory"):
        await agent.session.save("0")
    saved.unlink()
    mark = await agent.session.save("0")
    assert saved_files(saved / "a") == {mark}
    await environment.close()
