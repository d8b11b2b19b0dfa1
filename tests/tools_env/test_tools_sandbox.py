from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools_env.support import Agent, begun, host_processes
from tools_env import bubblewrap
from tools_env.catalogue import CATALOGUE
from tools_env.sandbox import SandboxEnvironment, SandboxUnavailable, check


def test_check_finds_a_working_sandbox() -> None:
    assert check() is None


async def test_results_of_commands(agent: Agent) -> None:
    done = await agent.bash(command="echo out; echo err >&2; echo last")
    assert (done.status, done.exit_code, done.output) == ("ok", 0, "out\nerr\nlast\n")
    assert done.output_bytes == len("out\nerr\nlast\n") and not done.truncated
    failed = await agent.bash(command="echo no; exit 3")
    assert (failed.status, failed.exit_code, failed.output) == ("error", 3, "no\n")
    assert (await agent.bash(command="kill -KILL $$")).exit_code == 137
    assert (await agent.bash(command="-x")).exit_code == 127
    assert (await agent.bash(command="if")).exit_code == 2
    assert (await agent.python(code="print(6 * 7)")).output == "42\n"
    traceback = await agent.python(code="1/0")
    assert traceback.status == "error" and "ZeroDivisionError" in traceback.output
    assert (await agent.submit(answer="42")).answer == "42"
    assert (await agent.dance()).status == "error"


async def test_only_the_workspace_is_kept(agent: Agent) -> None:
    await agent.bash(command="echo kept > kept; echo gone > /tmp/gone; export X=1")
    result = await agent.bash(command="cat kept; ls /tmp; echo [$X]; pwd; cat notes.txt")
    assert result.output == "kept\n[]\n/workspace\none\ntwo\nthree\n"


async def test_environment_is_clean(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "host")
    result = await agent.bash(
        command="env -u _ -u SHLVL -u PWD -u OLDPWD | sort; whoami; hostname; ls -A /proc/self/fd"
    )
    assert result.output.split("\n")[:7] == [
        "HOME=/workspace",
        "LANG=C.UTF-8",
        "PATH=/usr/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONHASHSEED=0",
        "TZ=UTC",
        "USER=agent",
    ]
    assert result.output.split("\n")[7:9] == ["agent", "sandbox"]
    assert "SECRET" not in result.output


async def test_nothing_of_the_host_is_visible(agent: Agent, environment: SandboxEnvironment, tmp_path: Path) -> None:
    await environment.open("other", {"secret": "other's"})
    (tmp_path / "host").write_text("host's")
    result = await agent.bash(
        command=f"cat {tmp_path}/host; ls {tmp_path} /root /home /run /var; cat /etc/shadow; ls /workspace/..;"
        "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done"
    )
    assert "host's" not in result.output and "other's" not in result.output
    assert str(Path(bubblewrap.__file__).parent) not in result.output, "a path of the host shows in the process list"
    assert result.output.count("No such file or directory") == 7
    visible = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "workspace"}
    assert set((await agent.bash(command="ls -A /")).output.split()) <= visible


async def test_no_descriptor_of_the_host_is_inherited(agent: Agent, tmp_path: Path) -> None:
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        links = (await agent.bash(command="readlink /proc/self/fd/*")).output.split()
    finally:
        os.close(leaked)
    assert all(link.startswith(("pipe:", "user:", "/dev/null", "/proc/")) for link in links), links


@pytest.mark.parametrize(
    "attempt",
    [
        "touch /usr/planted",
        "touch /etc/planted",
        "touch /planted",
        "touch /dev/planted",
        "mount -o remount,rw,bind /usr",
        "mount -t tmpfs none /workspace",
        "unshare --user --map-root-user true",
        "mknod disk b 254 0",
        "chown 0 notes.txt",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo b > /proc/sysrq-trigger",
        "head -c1 /proc/kcore | grep -q .",
        "hostname other",
        "ulimit -v unlimited",
    ],
)
async def test_the_system_cannot_be_changed(agent: Agent, attempt: str) -> None:
    result = await agent.bash(command=attempt)
    assert result.status == "error" and result.exit_code, result
    assert not Path("/usr/planted").exists()


async def test_no_capability_and_no_root(agent: Agent) -> None:
    result = await agent.bash(
        command="grep -E '^(Uid|CapEff|CapPrm|CapBnd|NoNewPrivs)' /proc/self/status; stat -c %u ."
    )
    fields = dict(line.split(":\t", 1) for line in result.output.splitlines()[:-1])
    assert {fields[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"
    assert result.output.endswith("\n1000\n")
    await agent.bash(command="touch mine")
    assert (agent.workspace / "mine").stat().st_uid != 0, "the agent is root on the host"


async def test_no_network(agent: Agent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
        result = await agent.python(code=code)
    assert result.status == "error" and "ConnectionRefusedError" in result.output


async def test_deadline_ends_everything(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path, ["bash"], deadline_seconds=1.0)
    agent = Agent(await environment.open("a", {}))
    marker = f"sleep 98{os.getpid()}"
    stubborn = f"setsid bash -c 'trap \"\" TERM; {marker} & {marker}' & (({marker}) &)"
    result = await agent.bash(command=f"trap '' TERM HUP INT; {stubborn}; echo started; yes")
    assert result.status == "timeout" and result.exit_code is None
    assert result.output.startswith("started\n") and result.output.endswith("[killed at the deadline of 1 s]")
    assert result.truncated and result.seconds < 10
    assert host_processes(marker) == []
    assert (await agent.bash(command="echo still usable")).output == "still usable\n"
    await environment.close()


async def test_what_a_command_leaves_running_is_dead_when_it_returns(agent: Agent) -> None:
    marker = f"sleep 97{os.getpid()}"
    result = await agent.bash(command=f"setsid {marker} >/dev/null 2>&1 & (nohup {marker} &) ; echo done")
    assert (result.status, result.output.splitlines()[-1]) == ("ok", "done")
    assert host_processes(marker) == []


async def test_cancelling_a_call_kills_it(agent: Agent) -> None:
    marker = f"sleep 96{os.getpid()}"
    call = asyncio.create_task(agent.bash(command=f"touch begun; exec {marker}"))
    await begun(agent)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert host_processes(marker) == []
    assert (await agent.bash(command="echo fine")).output == "fine\n"


async def test_closing_a_session_ends_its_calls(agent: Agent) -> None:
    marker = f"sleep 95{os.getpid()}"
    call = asyncio.create_task(agent.bash(command=f"touch begun; exec {marker}"))
    await begun(agent)
    await agent.session.close()
    assert (await call).status == "crashed"
    assert host_processes(marker) == []
    assert not agent.workspace.exists()
    with pytest.raises(RuntimeError):
        await agent.bash(command="true")


async def test_a_hundred_megabytes_of_output(agent: Agent) -> None:
    result = await agent.bash(command="echo first; head -c 100000000 /dev/zero; echo; echo last")
    assert result.status == "ok"
    assert result.output_bytes == 100_000_000 + len("first\n\nlast\n")
    assert result.output.startswith("first\n") and result.output.endswith("last\n")
    assert "bytes dropped ...]" in result.output and "\0" not in result.output
    assert len(result.output) < 17_000


async def test_fork_bomb_is_contained(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path, ["bash", "python"], deadline_seconds=2.0, process_limit=40)
    bomber, neighbour = Agent(await environment.open("a", {})), Agent(await environment.open("b", {}))
    # Forks until it may not, counts, and then keeps all of them alive.
    code = (
        "import os, time\nn = 0\ntry:\n    while True:\n        os.fork() or time.sleep(99)\n        n += 1\n"
        "except OSError as error:\n    print(n, error, flush=True)\ntime.sleep(99)"
    )
    bomb = asyncio.create_task(bomber.python(code=code))
    await asyncio.sleep(0.8)
    assert (await neighbour.bash(command="(echo neighbour)")).output == "neighbour\n"
    result = await bomb
    assert result.status == "timeout"
    assert 30 < int(result.output.split()[0]) <= 56 and "unavailable" in result.output
    assert (await bomber.bash(command="(echo again)")).output == "again\n"
    await environment.close()


async def test_memory_and_file_sizes_are_limited(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path, ["bash", "python"], memory_limit_bytes=512 << 20)
    agent = Agent(await environment.open("a", {}))
    assert "MemoryError" in (await agent.python(code="x = bytearray(1 << 30)")).output
    assert (await agent.python(code="x = bytearray(1 << 28)")).status == "ok"
    assert (await agent.bash(command="truncate -s 1T big")).status == "error"
    assert (await agent.bash(command="head -c 300M /dev/zero > /tmp/x")).status == "error", "/tmp has a size"
    assert (await agent.bash(command="head -c 80M /dev/zero > /dev/shm/x")).status == "error"
    await environment.close()


async def test_calls_queue_for_a_place(tmp_path: Path) -> None:
    environment = SandboxEnvironment(tmp_path, ["bash"], max_running=2)
    agent = Agent(await environment.open("a", {}))
    command = "mkdir -p run; touch run/$$-$RANDOM-x; ls run | wc -l; sleep 0.3; rm run/*-x 2>/dev/null; true"
    results = await asyncio.gather(*(agent.bash(command=command) for _ in range(6)))
    assert [result.status for result in results] == ["ok"] * 6
    assert max(int(result.output.split()[0]) for result in results) <= 2
    assert sum(result.queue_seconds > 0.2 for result in results) == 4
    await environment.close()


async def test_a_locked_workspace_is_the_agents_problem_not_a_crash(agent: Agent) -> None:
    assert (await agent.bash(command="chmod 000 /workspace")).status == "ok"
    assert (await agent.bash(command="cat notes.txt")).output == "one\ntwo\nthree\n"


async def test_a_vanished_workspace_is_a_crash(agent: Agent) -> None:
    agent.workspace.rename(agent.workspace.with_name("elsewhere"))
    for result in (await agent.bash(command="true"), await agent.list_files()):
        assert result.status == "crashed" and result.output
    agent.workspace.with_name("elsewhere").rename(agent.workspace)
    assert (await agent.bash(command="true")).status == "ok"


async def test_a_sandbox_killed_from_outside_is_a_crash(agent: Agent) -> None:
    marker = f"sleep 94{os.getpid()}"
    call = asyncio.create_task(agent.bash(command=f"touch begun; {marker}; true"))
    await begun(agent)
    outer = next(
        p for p in host_processes(marker) if Path(f"/proc/{p}/status").read_text().count(f"PPid:\t{os.getpid()}\n")
    )
    os.kill(outer, 9)
    assert (await call).status == "crashed"
    assert host_processes(marker) == []


async def test_want_of_descriptors_is_a_crash_and_leaks_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent.session._runner, "_most_places", 1)
    await agent.bash(command="true")
    gaps = [os.dup(0) for _ in range(max(descriptors()))]
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    statuses = set()
    try:
        for spare in range(1, 16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(before) + spare, hard))
            statuses.add((await agent.bash(command="true")).status)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    after = descriptors()
    for gap in gaps:
        os.close(gap)
    assert statuses == {"crashed", "ok"}
    assert after == before
    assert (await agent.bash(command="true")).status == "ok"


def descriptors() -> list[int]:
    return sorted(int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists())


def test_remains_do_not_use_up_the_limit_on_processes(tmp_path: Path) -> None:
    # Nobody reaps for us, as in a container whose process 1 does not: an idle subreaper stands between us and it.
    program = (
        "import ctypes, subprocess, sys, time\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n"
        "child = subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]], capture_output=True, text=True)\n"
        "print(child.stdout, child.stderr)"
    )
    agents = (
        "import asyncio, os, sys\nfrom pathlib import Path\nfrom tools_env import runner\n"
        "from tools_env.sandbox import SandboxEnvironment\nrunner._SPARE_PLACES = 2\n"
        "async def main():\n"
        "    environment = SandboxEnvironment(Path(sys.argv[1]), ['bash'], process_limit=8, max_running=2)\n"
        "    session = await environment.open('a', {})\n"
        "    calls = [session.call('bash', {'command': '(true)'}) for _ in range(150)]\n"
        "    print({result.status for result in await asyncio.gather(*calls)})\n"
        "    await environment.close()\nasyncio.run(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, agents, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["{'ok'}"], done


async def test_too_long_a_command_is_explained(agent: Agent) -> None:
    result = await agent.bash(command="true " + "x" * 140_000)
    assert result.status == "error" and "131071 at most" in result.output
    assert (await agent.bash(command="true " + "x" * 120_000)).status == "ok"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", ".", "a\0b"])
async def test_initial_files_are_checked(environment: SandboxEnvironment, path: str) -> None:
    with pytest.raises(ValueError, match="workspace file"):
        await environment.open("a", {path: "x"})


async def test_keys_become_safe_directory_names(environment: SandboxEnvironment) -> None:
    for key in ("task/1", "..", ".etc", "a b\n", "ключ"):
        session = await environment.open(key, {"f": key})
        assert session.workspace.parent.name.startswith("live-")
        assert (session.workspace / "f").read_text() == key
    with pytest.raises(ValueError, match="open already"):
        await environment.open("..", {})
    with pytest.raises(ValueError, match="255"):
        await environment.open("x" * 256, {})


async def test_keep_leaves_the_workspace(environment: SandboxEnvironment, tmp_path: Path) -> None:
    session = await environment.open("a/b", {"f": "x"})
    await session.close(keep=True)
    assert session.workspace == tmp_path / "root" / "kept" / "a%2Fb"
    await environment.close()
    assert (session.workspace / "f").read_text() == "x"
    assert [path.name for path in (tmp_path / "root").iterdir()] == ["kept"]


def test_unknown_tools_and_visible_roots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such tool: fly"):
        SandboxEnvironment(tmp_path, ["bash", "fly"])
    with pytest.raises(ValueError, match="agents can read /usr"):
        SandboxEnvironment(Path("/usr/local/runs"), list(CATALOGUE))


async def test_the_python_of_this_process_serves_where_the_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = str(Path(os.path.realpath("/proc/self/exe")))
    monkeypatch.setattr(bubblewrap, "_SYSTEM_PYTHONS", ())
    environment = SandboxEnvironment(tmp_path, ["python", "search_files"])
    agent = Agent(await environment.open("a", {"f": "needle"}))
    assert (await agent.python(code="import sys; print(sys.executable)")).output.strip() == own
    assert (await agent.search_files(pattern="needle")).output == "f:1: needle\n"
    await environment.close()


def test_where_no_bubblewrap_works_it_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "_binaries", lambda: [broken])
    unavailable = check()
    assert isinstance(unavailable, SandboxUnavailable)
    assert "No permissions" in str(unavailable) and "\n" not in str(unavailable)
