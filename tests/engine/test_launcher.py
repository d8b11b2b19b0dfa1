"""Launched servers: their starts, their restarts, and that nothing of them outlives who started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from concur_batch.driver.engines import News
from concur_batch.engine import launcher as launching
from concur_batch.engine import restarts as restarting
from concur_batch.engine.clients import connect
from concur_batch.engine.launcher import Launcher
from concur_batch.engine.process import ServerProcess
from concur_batch.engine.protocol import EngineError
from concur_batch.engine.restarts import FAILED_STARTS
from concur_batch.workload.schema import Launch, VllmEngine
from tests.servers import is_running

# Serves health checks, with a child as vLLM's engine core, which does not notice its parent's end. By its environment:
# start number FAIL_FROM and later ones end at once, SLOW never serves. Each start leaves a line of pids.
FAKE = f"""#!{sys.executable}
import os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

starts = Path(os.environ["STARTS"])
number = len(starts.read_text().splitlines()) + 1 if starts.exists() else 1
print("start", number, flush=True)
if number >= int(os.environ.get("FAIL_FROM", "99")):
    starts.open("a").write("-\\n")
    sys.exit(f"no memory for start {{number}}")
child = subprocess.Popen(["sleep", "600"])
starts.open("a").write(f"{{os.getpid()}} {{child.pid}}\\n")
while "SLOW" in os.environ:
    time.sleep(1)

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *arguments):
        pass

arguments = dict(zip(sys.argv, sys.argv[1:]))
HTTPServer((arguments["--host"], int(arguments["--port"])), Health).serve_forever()
"""


class Fake:
    """A launcher of the fake server."""

    def __init__(self, directory: Path, ready_seconds: float = 30, **env: str) -> None:
        program = directory / "python"
        program.write_text(FAKE)
        program.chmod(0o755)
        self._starts = directory / "starts"
        self.log = directory / "engine" / "vllm-0.log"
        section = Launch(
            python=program,
            model=directory,
            env={"STARTS": str(self._starts), **env},
            ready_seconds=ready_seconds,
        )
        self.launcher = Launcher(VllmEngine(kind="vllm", launch=section), "name", "127.0.0.1", self.log)

    def pids(self) -> list[list[int]]:
        """Of each start, the server's and its child's."""
        lines = self._starts.read_text().splitlines() if self._starts.exists() else []
        return [[int(pid) for pid in line.split() if pid != "-"] for line in lines]

    async def notes(self) -> list[str]:
        return await self.launcher.notes(0)


@pytest.fixture
async def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Fake]]:
    """Makes launchers whose waits are as of a server that starts within milliseconds."""
    monkeypatch.setattr(launching, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(restarting, "FIRST_WAIT_SECONDS", 0.01)
    made: list[Fake] = []

    def make(**settings: Any) -> Fake:
        made.append(Fake(tmp_path, **settings))
        return made[-1]

    yield make
    for fake in made:
        await fake.launcher.stop()
        assert not [pid for pids in fake.pids() for pid in pids if is_running(pid)]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - no event tells of another process
            await asyncio.sleep(0.02)


async def test_a_server_serves_until_it_is_stopped(make: Callable[..., Fake]) -> None:
    fake = make()
    assert not await fake.launcher.alive()
    url = await fake.launcher.start()
    engine = connect("vllm", url, 5, 0)
    assert await engine.ready()
    assert await fake.launcher.alive()
    [[server, child]] = fake.pids()
    assert is_running(server) and is_running(child)
    await fake.launcher.stop()
    assert not await engine.ready()
    assert not await fake.launcher.alive()
    assert not is_running(server) and not is_running(child)
    assert fake.log.read_text() == "start 1\n"
    await engine.close()


async def test_a_killed_server_returns_on_its_port_and_leaves_no_child(make: Callable[..., Fake]) -> None:
    fake = make()
    engine = connect("vllm", await fake.launcher.start(), 5, 0)
    for number in (1, 2):
        server, child = fake.pids()[-1]
        os.kill(server, signal.SIGKILL)
        await until(lambda number=number: len(fake.launcher._notes) == 2 * number)  # type: ignore[misc]
        assert await engine.ready()
        assert not is_running(child)
    assert await fake.launcher.alive()
    assert len(fake.pids()) == 3
    assert await fake.notes() == [
        "vllm-0: the server ended with exit code -9: start 1; it is started again in 0.01 s",
        "vllm-0: the server serves again",
        "vllm-0: the server ended with exit code -9: start 2; it is started again in 0.02 s",
        "vllm-0: the server serves again",
    ]
    assert await fake.launcher.notes(3) == ["vllm-0: the server serves again"]
    await engine.close()


async def test_a_server_that_never_serves_again_is_given_up(make: Callable[..., Fake]) -> None:
    fake = make(FAIL_FROM="2")
    await fake.launcher.start()
    os.kill(fake.pids()[0][0], signal.SIGKILL)
    await until(lambda: len(fake.launcher._notes) == 1 + FAILED_STARTS)
    await until(lambda: fake.launcher._watching is not None and fake.launcher._watching.done())
    assert not await fake.launcher.alive()
    assert len(fake.pids()) == 1 + FAILED_STARTS
    notes = await fake.notes()
    assert "exit code 1 before it served: no memory for start 2; it is started again in 0.02 s" in notes[1]
    assert notes[-1].endswith("no memory for start 6; 5 starts in a row failed, it is not started again")


async def test_a_first_start_that_fails_is_told_at_once(make: Callable[..., Fake]) -> None:
    fake = make(FAIL_FROM="1")
    with pytest.raises(EngineError) as caught:
        await fake.launcher.start()
    said = "vllm-0: the server ended with exit code 1 before it served: no memory for start 1"
    assert str(caught.value) == f"{said} (whole log: {fake.log})"
    assert len(fake.pids()) == 1
    assert not await fake.launcher.alive()


async def test_a_server_that_takes_too_long_is_stopped(
    make: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_NOTE_SECONDS", 0.3)
    fake = make(ready_seconds=1.5, SLOW="1")
    with pytest.raises(EngineError, match=r"did not serve within 1\.5 s; raise engine\.launch\.ready_seconds"):
        await fake.launcher.start()
    notes = await fake.notes()
    assert 2 <= len(notes) <= 5
    assert notes[-1] == "vllm-0: starts since 1 s: start 1"
    [[server, child]] = fake.pids()
    assert not is_running(server) and not is_running(child)


async def test_a_program_that_cannot_be_started_is_an_error(tmp_path: Path) -> None:
    section = Launch(python=tmp_path / "gone", model=tmp_path)
    with pytest.raises(EngineError, match="gone cannot be started: No such file"):
        engine = VllmEngine(kind="vllm", launch=section)
        await Launcher(engine, "name", "127.0.0.1", tmp_path / "vllm-0.log").start()


async def test_a_server_stops_once_it_is_dead_too(tmp_path: Path) -> None:
    process = ServerProcess(["sh", "-c", "sleep 600 & echo $!; exit 7"], {}, tmp_path / "log")
    await until(lambda: process.exit_code == 7)
    child = int(process.last_line())
    assert is_running(child)
    await process.stop()
    await until(lambda: not is_running(child))
    assert process.exit_code == 7


def test_a_killed_launcher_takes_the_server_and_its_children_along(tmp_path: Path) -> None:
    """By kill -9, which nobody can handle."""
    holder = f"""
import time
from pathlib import Path
from concur_batch.engine.process import ServerProcess
server = ServerProcess(["sh", "-c", "sleep 600 & echo $$ $!; wait"], {{}}, Path({str(tmp_path / "log")!r}))
print("started", flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    asyncio.run(until(lambda: (tmp_path / "log").read_text().endswith("\n")))
    pids = [int(pid) for pid in (tmp_path / "log").read_text().split()]
    assert len(pids) == 2 and all(map(is_running, pids))
    process.kill()
    process.communicate()
    asyncio.run(until(lambda: not any(map(is_running, pids))))


class Teller:
    """Stands in for a launcher's handle."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answers = True
        self.notes = self

    async def remote(self, heard: int) -> list[str]:
        if not self.answers:
            raise TimeoutError
        return self.told[heard:]


async def test_news_are_told_once_and_none_is_lost() -> None:
    first, second = Teller(), Teller()
    news = News([first, second])
    assert await news.read() == []
    first.told, second.told = ["a"], ["x", "y"]
    second.answers = False
    assert await news.read() == ["a"]
    first.told.append("b")
    second.answers = True
    assert await news.read() == ["b", "x", "y"]
    assert await news.read() == []
