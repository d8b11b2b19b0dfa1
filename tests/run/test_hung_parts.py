"""Parts of a run that live and do not answer: the run goes on without them, and ends."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from concur_batch.trace.reading import Run
from tests.engine.chat_server import ChatServer, ChatServing, Said, calls, says
from tests.run.command import Running, synthetic_workload, wait_for
from tests.run.engines import rows_of

AGENTS = 4


class Holding(ChatServer):
    """Its agents submit at once, but for those that are `held`."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.names = ["demo"]
        self.held = {"t0002", "t0003"}

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        while self.held & set(re.findall(r"Task (\w+)", await request.text())):  # noqa: ASYNC110 - another thread changes it
            await asyncio.sleep(0.05)
        return await super()._complete(request)

    def _say(self, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Said:
        return calls(("submit", {"answer": "done"})) if "Task" in messages[-1]["content"] else says("Yes.")


def stop(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        process.send_signal(signal.SIGSTOP)


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_a_recorder_then_the_controller_and_all_hosts_hang_and_the_run_ends_all_the_same(tmp_path: Path) -> None:
    server, output = Holding(), tmp_path / "runs"

    def have_ended(count: int) -> None:
        wait_for(lambda: len(rows_of(output, "agents")) == count, f"{count} agents to end")

    with ChatServing(server) as url:
        engine = {"kind": "openai", "url": url}
        workload = synthetic_workload(tmp_path, AGENTS, engine=engine, agent={"hosts": 2})
        silent = {f"concur_batch.driver.{part}.SILENT_SECONDS": 6 for part in ("driver", "recorders")}
        running = Running(workload, constants=silent)
        have_ended(2)
        hung = running.actors("Recorder")
        stop(hung)
        server.held.remove("t0002")  # its rows are taken by the next recorder
        have_ended(3)
        # One of the hosts has no agent left, the other one.
        others = [*running.actors("AgentHost"), *running.actors("Controller")]
        stop(others)
        hung += others
        assert len(hung) == 4
        server.held.clear()  # nobody is there to hear it
        summary = running.end(0)
    assert (summary["finished"], summary["unfinished"], summary["status"]) == (AGENTS, 0, "finished")
    run = Run(summary["run_dir"])
    rows = run.table("agents").to_pylist()
    assert sorted((row["agent_id"], row["attempt"], row["final"]) for row in rows) == [
        (f"t{number:04d}/0", 0, True) for number in range(AGENTS)
    ]
    assert run.table("turns").num_rows == AGENTS
    assert not (run.path / "journal").exists()
    for part in ("a recorder", "the controller", "host0", "host1"):
        assert f"{part} does not answer any more" in running.log
    wait_for(lambda: not any(map(lives, hung)), "the end of those that hung", 20)
