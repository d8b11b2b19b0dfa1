"""What a signal leaves to the turns that are under way, and what it takes from them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from concur_batch.trace.intents import read_intents, unrecorded
from concur_batch.trace.reading import Run
from tests.engine.chat_server import ChatServer, ChatServing, Said, calls, says
from tests.run.command import ROOT, Running, concur, wait_for
from tests.run.engines import rows_of
from tests.tools_env.support import host_processes

GRACE = "concur_batch.driver.driver._GRACE_SECONDS"
SLEEP = f"sleep 92{os.getpid()}"  # to be found among the machine's processes
TASKS = ("hangs", "ends", "late")


class Slow(ChatServer):
    """Its agents call one tool and submit: the tool of `hangs` never ends, unless it is `healed`, that of `ends` does
    once there is a file `go`."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.healed = False

    def asked(self, task: str) -> int:
        return sum(task in str(body["messages"]) for body in self.bodies)

    def _say(self, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Said:
        commands = {
            "hangs": "true" if self.healed else f"touch begun; exec {SLEEP}",
            "ends": "touch begun; while [ ! -e go ]; do sleep 0.1; done",
            "late": "true",
        }
        if messages[-1]["role"] == "tool":
            return calls(("submit", {"answer": "done"}), prefix="end")
        for task, command in commands.items():
            if task in messages[-1]["content"]:
                return calls(("bash", {"command": command}))
        return says("Yes.")


def write_workload(directory: Path, url: str) -> Path:
    (directory / "tasks.jsonl").write_text("".join(json.dumps({"id": task}) + "\n" for task in TASKS))
    workload = {
        "name": "slow",
        "tasks": {"file": "tasks.jsonl", "prompt": "{{ id }}"},
        "model": {"name": "m", "tokenizer": str(ROOT / "workloads/demo_model")},
        "engine": {"kind": "openai", "url": url},
        "tools": {"kind": "sandbox", "names": ["bash", "submit"], "deadline_seconds": 3600},
        "control": {"policy": "agent_cap", "cap": 2},
        "output": str(directory / "runs"),
    }
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return path


def begun(output: Path) -> dict[str, Path]:
    """The workspaces in which a tool has begun, by task."""
    return {found.parent.name.split("%2F")[0]: found.parent for found in output.glob("*/workspaces/live-*/*/begun")}


def turns_of(run: Run) -> list[tuple[str, int, int]]:
    return sorted((row["task_id"], row["attempt"], row["turn"]) for row in run.table("turns").to_pylist())


def cut_off(run: Run) -> list[tuple[str, int]]:
    """The turns whose calls may have run and are on no record."""
    intents = read_intents(run.path)
    recorded = {(row["agent_id"], row["attempt"], row["turn"]) for row in run.table("turns").to_pylist()}
    return sorted((row["task_id"], row["turn"]) for row in unrecorded(intents, recorded))


def test_a_signal_waits_for_what_ends_in_time_a_second_one_for_nothing_and_neither_makes_results(
    tmp_path: Path,
) -> None:
    server, output = Slow(), tmp_path / "runs"
    with ChatServing(server) as url:
        # The first signal. `late` has no place yet.
        said = tmp_path / "first"
        running = Running(write_workload(tmp_path, url), constants={GRACE: 10}, said=said)
        wait_for(lambda: len(begun(output)) == 2, "two tools to begin")
        running.process.send_signal(signal.SIGTERM)
        running.until_said("stopping")
        (begun(output)["ends"] / "go").touch()
        summary = running.end(143)
        run = Run(summary["run_dir"])
        assert turns_of(run) == [("ends", 0, 0)], "it has ended in time, and nothing came after it"
        assert run.table("agents").num_rows == 0, "nobody has ended: no row says so"
        assert (summary["failed"], summary["unfinished"], summary["status"]) == (0, 3, "interrupted")
        assert f"concur resume {run.path}" in running.log
        assert (server.asked("ends"), server.asked("late"), host_processes(SLEEP)) == (1, 0, [])
        assert cut_off(run) == [("hangs", 0)], "the only call that may have run and is on no record"
        shown = concur("inspect", run.path, "hangs")
        assert (shown.returncode, f"command: touch begun; exec {SLEEP}" in shown.stdout) == (0, True), shown.stderr

        # Two signals: the first alone would wait for ever, and a host that hangs does not keep the second.
        said = tmp_path / "second"
        running = Running(run.path, verb="resume", constants={GRACE: 100_000}, said=said)
        wait_for(lambda: len(rows_of(output, "agents")) == 2 and "hangs" in begun(output), "all but one to end")
        running.process.send_signal(signal.SIGINT)
        running.until_said("stopping")
        assert running.process.poll() is None
        assert "1 call was cut off" in said.read_text()
        host = running.actor("AgentHost")
        host.send_signal(signal.SIGSTOP)
        running.process.send_signal(signal.SIGINT)
        summary = running.end(130)
        assert (summary["finished"], summary["failed"], summary["unfinished"]) == (2, 0, 1)
        wait_for(lambda: not host.is_running(), "the end of the host")
        assert host_processes(SLEEP) == []
        assert cut_off(run) == [("hangs", 0)]

        server.healed = True
        summary = Running(run.path, verb="resume").end(0)
    assert (summary["finished"], summary["status"]) == (3, "finished")
    assert [entry["calls_cut_off"] for entry in Run(run.path).manifest["resumed"]] == [1, 1]
    assert not (run.path / "intents").exists()
    assert turns_of(run) == [(task, 0, turn) for task in sorted(TASKS) for turn in (0, 1)]
    assert sorted((row["task_id"], row["attempt"], row["final"]) for row in run.table("agents").to_pylist()) == [
        (task, 0, True) for task in sorted(TASKS)
    ]
