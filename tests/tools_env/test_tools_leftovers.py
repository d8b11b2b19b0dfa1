from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools_env.support import Agent, host_processes
from tools_env.leftovers import sweep
from tools_env.sandbox import SandboxEnvironment
from tools_env.trees import remove_tree

OWNER = """
import asyncio, sys
from pathlib import Path
from tools_env.sandbox import SandboxEnvironment

async def main():
    environment = SandboxEnvironment(Path(sys.argv[1]), ["bash"])
    session = await environment.open("a", {"f": "x"})
    kept = await environment.open("b", {"f": "kept"})
    await kept.close(keep=True)
    lock = "mkdir -p locked/in; chmod 0 locked/in locked"
    await session.call("bash", {"command": f"{lock}; setsid {sys.argv[2]} & exec {sys.argv[2]}"})

asyncio.run(main())
"""


def wait_for(what: object, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_killing_the_owner_kills_its_sandboxes_and_sweep_clears_up(tmp_path: Path) -> None:
    marker = f"sleep 93{os.getpid()}"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path), marker], cwd=Path(__file__).parents[2])
    inside = f"\0{marker.split()[1]}\0"
    try:
        wait_for(lambda: len(host_processes(f"sleep{inside}")) == 2)
        assert sweep(tmp_path) == 0, "the owner lives"
        assert len(host_processes(f"sleep{inside}")) == 2
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    wait_for(lambda: not host_processes(marker.split()[1]))
    assert sweep(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept" / "b" / "f").read_text() == "kept"


async def test_the_keeper_goes_with_its_environment(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path, ["bash"])
    await environment.open("a", {})

    def keepers() -> list[int]:
        ours = f"PPid:\t{os.getpid()}\n"
        return [
            pid
            for pid in host_processes("namespace_keeper.py")
            if Path(f"/proc/{pid}").exists() and ours in Path(f"/proc/{pid}/status").read_text()
        ]

    before = len(keepers())
    assert before >= 1
    await environment.close()
    assert len(keepers()) == before - 1


async def test_two_environments_share_a_root(tmp_path: Path) -> None:
    one, two = SandboxEnvironment(tmp_path, ["bash"]), SandboxEnvironment(tmp_path, ["bash"])
    a, b = Agent(await one.open("same", {"f": "1"})), Agent(await two.open("same", {"f": "2"}))
    assert ((await a.bash(command="cat f")).output, (await b.bash(command="cat f")).output) == ("1", "2")
    assert sweep(tmp_path) == 0
    await one.close()
    assert (await b.bash(command="cat f")).output == "2"
    await two.close()
    assert list(tmp_path.iterdir()) == []


def test_sweep_of_nothing(tmp_path: Path) -> None:
    assert sweep(tmp_path / "absent") == 0
    (tmp_path / "live-file").touch()
    assert sweep(tmp_path) == 0


async def test_odd_trees_are_removed_and_nothing_beside_them(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "file").touch()
    environment = SandboxEnvironment(tmp_path / "root", ["bash", "python"])
    agent = Agent(await environment.open("a", {}))
    made = await agent.bash(
        command=f"ln -s {outside} dir; ln -s {outside}/file link; mkfifo fifo; mkdir -p a/b/c;"
        "touch a/b/c/f $'x\\n\\xff';"
        "chmod 0 a/b/c; chmod 0 a/b; chmod 0 a"
    )
    assert made.status == "ok", made
    await agent.python(code="import os\nfor _ in range(5000): os.mkdir('d'); os.chdir('d')")
    await agent.session.close()
    assert not agent.workspace.exists()
    assert outside.stat().st_mode & 0o777 == 0o750 and [path.name for path in outside.iterdir()] == ["file"]
    await environment.close()


@pytest.mark.parametrize("kind", ["file", "link", "missing"])
def test_remove_tree_of_what_is_no_directory(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    path = tmp_path / "path"
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(target)
    remove_tree(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["target"]
