"""A server whose parts run on the three nodes of a Ray cluster: they start, die, return and end together."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml

from concur_batch.driver.cluster import Cluster
from concur_batch.driver.engines import RunningEngine, start_engine
from concur_batch.engine.clients import connect
from concur_batch.workload.loading import load
from concur_batch.workload.schema import Workload
from tests.run.command import Running, concur, synthetic_workload
from tests.run.nodes import ray_nodes
from tests.servers import is_running

pytestmark = pytest.mark.ray
NODES = 3
# Leaves a line for each start of a part; the first node's serves health checks, unless SLOW is set.
FAKE = f"""#!{sys.executable}
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

arguments = dict(zip(sys.argv, sys.argv[1:]))
node = int(arguments["--node-rank"])
child = subprocess.Popen(["sleep", "600"])
meeting = arguments["--dist-init-addr"]
line = {{"node": node, "pid": os.getpid(), "child": child.pid, "parent": os.getppid(), "meeting": meeting,
         "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "nnodes": arguments["--nnodes"]}}
with open(os.environ["STARTS"], "a") as starts:
    starts.write(json.dumps(line) + "\\n")
print("part", node, flush=True)
while node > 0 or "SLOW" in os.environ:
    time.sleep(1)

class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()
    def log_message(self, *arguments):
        pass

HTTPServer((arguments["--host"], int(arguments["--port"])), Health).serve_forever()
"""


@dataclass(frozen=True)
class Started:
    """One start of one part. `parent` is the process of its actor."""

    node: int
    pid: int
    child: int
    parent: int
    meeting: str
    gpus: str | None
    nnodes: str


class Server:
    """A workload whose server is the fake one."""

    def __init__(self, directory: Path, gpus: int, **env: str) -> None:
        program = directory / "python"
        program.write_text(FAKE)
        program.chmod(0o755)
        self._starts = directory / "starts"
        (directory / "model").mkdir()
        launch = {
            "python": str(program),
            "model": str(directory / "model"),
            "nodes": NODES,
            "tp": NODES,
            "gpus": gpus,
            "env": {"STARTS": str(self._starts), **env},
        }
        self.file = synthetic_workload(directory, 1, engine={"kind": "sglang", "launch": launch})
        self.run_dir = directory / "run"
        self.notes: list[str] = []

    def workload(self) -> Workload:
        return load(self.file).workload

    def starts(self) -> list[list[Started]]:
        """Those of each time that the server was started, in the order of its parts."""
        lines = self._starts.read_text().splitlines() if self._starts.exists() else []
        parts = [Started(**json.loads(line)) for line in lines]
        return [
            sorted(parts[first : first + NODES], key=lambda part: part.node) for first in range(0, len(parts), NODES)
        ]

    def living(self) -> list[int]:
        pids = [pid for start in self.starts() for part in start for pid in (part.pid, part.child)]
        return [pid for pid in pids if is_running(pid)]

    async def complete(self, number: int) -> list[Started]:
        """The parts of that start, once all are there."""
        await until(lambda: len(self.starts()) >= number and len(self.starts()[number - 1]) == NODES)
        return self.starts()[number - 1]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - no event tells of another process
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of three nodes with two GPUs each, so that Ray believes."""
    with ray_nodes(NODES, "--num-gpus=2") as address:
        yield address


@pytest.fixture
def cluster(address: str) -> Iterator[Cluster]:
    cluster = Cluster(address)
    yield cluster
    cluster.close()


@pytest.fixture(params=[0, 3], ids=["on the CPU", "with a GPU a node"])
async def serving(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path
) -> AsyncIterator[tuple[Server, RunningEngine]]:
    server = Server(tmp_path, request.param)
    engine = await start_engine(server.workload(), cluster, server.run_dir, server.notes.append)
    yield server, engine
    await asyncio.gather(*(actor.stop.remote() for actor in engine.actors))
    assert not server.living()


async def is_ready(url: str) -> bool:
    client = connect("sglang", url, 5, 0)
    try:
        return await client.ready()
    finally:
        await client.close()


async def test_the_parts_are_on_different_nodes_and_one_of_them_serves(
    serving: tuple[Server, RunningEngine],
) -> None:
    server, engine = serving
    parts = await server.complete(1)
    [replica] = engine.replicas
    assert await is_ready(replica.url)
    assert [(part.node, part.nnodes) for part in parts] == [(0, "3"), (1, "3"), (2, "3")]
    assert len({part.meeting for part in parts}) == 1
    # The processes of the nodes' actors have different raylets as parents.
    assert len({psutil.Process(part.parent).ppid() for part in parts}) == NODES
    with_gpus = server.workload().engine.launch.gpus  # type: ignore[union-attr]
    assert all((part.gpus or "") in (("0", "1") if with_gpus else ("",)) for part in parts)
    logs = {log.name: log.read_text() for log in (server.run_dir / "engine").iterdir()}
    assert logs == {
        "sglang-0.log": "part 0\n", "sglang-0-node1.log": "part 1\n", "sglang-0-node2.log": "part 2\n"
    }  # fmt: skip


async def test_all_parts_return_on_the_same_port_when_one_dies(serving: tuple[Server, RunningEngine]) -> None:
    server, engine = serving
    [replica] = engine.replicas
    told: list[str] = []
    for number, (node, how) in enumerate([(1, "part"), (0, "part"), (2, "actor")], start=1):
        parts = await server.complete(number)
        victim = parts[node]
        os.kill(victim.pid if how == "part" else victim.parent, signal.SIGKILL)
        await server.complete(number + 1)
        async with asyncio.timeout(60):
            while len(told) < 2 * number:
                told += await engine.news.read()
        assert not [pid for part in parts for pid in (part.pid, part.child) if is_running(pid)]
        assert await is_ready(replica.url)
        assert await engine.alive()
    assert told == [
        "sglang-0: the server's part on node 1 ended with exit code -9: part 1; it is started again in 1 s",
        "sglang-0: the server serves again",
        "sglang-0: the server's part on node 0 ended with exit code -9: part 0; it is started again in 2 s",
        "sglang-0: the server serves again",
        "sglang-0: the server's part on node 2 is gone: its node or its actor has died; it is started again in 4 s",
        "sglang-0: the server serves again",
    ]


async def test_no_part_outlives_the_launcher(cluster: Cluster, tmp_path: Path) -> None:
    server = Server(tmp_path, 0)
    engine = await start_engine(server.workload(), cluster, server.run_dir, server.notes.append)
    first = (await server.complete(1))[0]
    os.kill(first.parent, signal.SIGKILL)
    await until(lambda: not server.living())
    assert not await engine.alive()


async def test_no_part_outlives_the_command(address: str, tmp_path: Path) -> None:
    """By kill -9, while the cluster goes on; the server never comes to serve."""
    server = Server(tmp_path, 3, SLOW="1")
    running = Running(server.file, "--ray-address", address)
    await server.complete(1)
    running.process.kill()
    running.process.communicate()
    await until(lambda: not server.living())


async def test_a_cluster_that_is_too_small_is_one_line(address: str, tmp_path: Path) -> None:
    server = Server(tmp_path, 0)
    workload = yaml.safe_load(server.file.read_text())
    workload["engine"]["launch"] |= {"nodes": 4, "tp": 4}
    server.file.write_text(yaml.safe_dump(workload))
    done = await asyncio.to_thread(concur, "run", server.file, "--ray-address", address)
    assert done.returncode == 1
    assert "engine.launch.nodes is 4, and the nodes of the cluster are 3" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
