"""A batch in which something goes wrong for most of its agents, for each something else: only that agent notices, and
a resume runs just those again for which it went wrong."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import yaml
from aiohttp import web

from concur_batch.trace.reading import Run
from tests.engine.chat_server import ChatServer, ChatServing, Said, calls, refused, says
from tests.run.command import ROOT, Running, wait_for
from tests.run.engines import rows_of
from tools_env import bubblewrap

# What an agent says first, by its task; then each adds up its numbers and submits the sum.
FIRST: Mapping[str, Sequence[Said]] = {
    "nonsense": [calls(("bash", '{"command": "paste'))] * 3,
    "flood": [calls(("bash", {"command": "yes | head -c 100000000; echo end"}))],
    "bytes": [calls(("bash", {"command": r"printf '\377\376caf\351'"}))],
    "nul": [calls(("bash", {"command": r"printf 'a\000b'"}))],
    "nul-in-call": [calls(("bash", r'{"command": "echo a\u0000b"}'))],
    "surrogate": [calls(("bash", r'{"command": "echo \ud800"}'))],
    "long-output": [calls(*(("bash", {"command": f"yes | head -c {16_000 + n}"}) for n in range(8)))],
}
# What the engine answers, by task.
FAULTS: Mapping[str, tuple[int, str]] = {
    "error": (500, "out of memory"),
    "garbage": (200, '{"choices": [{"mess'),
    "empty": (200, '{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 0}}'),
    "refused": (400, "no"),
}
GOOD = {"good0", "good1", "good2", "good3", "once", "flood", "bytes", "nul", "nul-in-call", "surrogate", "hangs"}
LIMIT = {"long-prompt", "long-output"}
INFRASTRUCTURE = {*FAULTS, "no-sandbox0", "no-sandbox1"}
TASKS = sorted({*GOOD, *LIMIT, *INFRASTRUCTURE, "nonsense"})


class Troubled(ChatServer):
    """`asked` counts requests by task. Nobody is troubled any more once it is `healed`; `hangs` is once `released`."""

    def __init__(self) -> None:
        super().__init__(self._say)
        self.context_tokens = 40_000
        self.asked: Counter[str] = Counter()
        self.healed = False
        self.released = threading.Event()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        task = task_of((await request.json())["messages"])
        self.asked[task] += 1
        while task == "hangs" and not self.released.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.05)
        if task in FAULTS and not self.healed:
            status, text = FAULTS[task]
            return web.Response(status=status, text=text)
        if task == "once" and self.asked[task] == 1:
            return refused("overloaded", 503)
        return await super()._complete(request)

    def _say(self, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Said:
        task = task_of(messages)
        if not task:  # the driver's probe
            return says("Yes.")
        first = () if self.healed else FIRST.get(task, ())
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn < len(first):
            return first[turn]
        if turn == len(first):
            return calls(("bash", {"command": f"paste -sd+ numbers.txt | bc # {task}"}), prefix="add")
        return calls(("submit", {"answer": messages[-1]["content"].strip()}), prefix="end")


def task_of(messages: Sequence[Mapping[str, Any]]) -> str:
    for message in messages:
        if message["role"] == "user":
            found = re.match(r"Task (\S+)", message["content"])
            return found[1] if found else ""
    return ""


def write_workload(directory: Path, url: str) -> Path:
    tasks = [
        {
            "id": name,
            "text": "word " * 60_000 if name == "long-prompt" else "Add up the numbers.",
            "files": {"numbers.txt": f"{number}\n1000\n"},
            "answer": 1000 + number,
        }
        for number, name in enumerate(TASKS)
    ]
    (directory / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    workload = {
        "name": "troubled",
        "tasks": {"file": "tasks.jsonl", "prompt": "Task {{ id }}\n\n{{ text }}", "files": "files"},
        "model": {"name": "m", "tokenizer": str(ROOT / "workloads/demo_model")},
        "engine": {"kind": "openai", "url": url, "retries": 1},
        "agent": {"attempts": 2},
        "tools": {"kind": "sandbox", "names": ["bash", "submit"]},
        "control": {"policy": "none"},
        "verify": [{"kind": "answer", "column": "answer", "match": "number"}],
        "output": str(directory / "runs"),
    }
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return path


def failing_bwrap(directory: Path) -> Path:
    """A directory for PATH whose bwrap starts no sandbox for the commands of some tasks, while `broken` is there."""
    directory.mkdir()
    (directory / "broken").touch()
    program = directory / "bwrap"
    program.write_text(
        f'#!/bin/sh\ncase "$*" in *"# no-sandbox"*) [ -e {directory}/broken ] && exit 1;; esac\n'
        f'exec {bubblewrap._binaries()[0]} "$@"\n'
    )
    program.chmod(0o755)
    return directory


def ended(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str, str | None, float | None]]:
    """How each agent ended, by task; each has one final row."""
    final = [row for row in rows if row["final"]]
    assert len({row["task_id"] for row in final}) == len(final)
    return {row["task_id"]: (row["status"], row["end_reason"], row["failure_class"], row["reward"]) for row in final}


def test_what_befalls_an_agent_is_noticed_by_no_other_and_made_good_by_a_resume(tmp_path: Path) -> None:
    server, programs, output = Troubled(), failing_bwrap(tmp_path / "programs"), tmp_path / "runs"
    with ChatServing(server) as url:
        path = f"{programs}:{os.environ['PATH']}"
        running = Running(write_workload(tmp_path, url), env={"PATH": path})

        # One hangs; all others come to their ends, those that are tried again too.
        def all_but_one() -> bool:
            return sum(row["final"] for row in rows_of(output, "agents")) == len(TASKS) - 1

        wait_for(all_but_one, "all but one to end")
        assert server.asked["hangs"] == 1
        server.released.set()
        summary = running.end(1)

        run = Run(summary["run_dir"])
        before = run.table("agents").to_pylist()
        endings = ended(before)
        assert {task for task, ending in endings.items() if ending == ("finished", "submit", None, 1.0)} == GOOD
        assert {task for task, ending in endings.items() if ending[:3] == ("limit", "context", "limit")} == LIMIT
        assert endings["nonsense"] == ("failed", "malformed", "model", None)
        failed = {task for task, ending in endings.items() if ending[2] == "infrastructure"}
        assert failed == INFRASTRUCTURE
        assert all(endings[task][3] is None for task in failed), "no reward of 0 for what is nobody's fault"
        assert summary["failures"] == {"infrastructure": len(INFRASTRUCTURE), "model": 1}
        # Their attempts are capped, all are kept, and the last is the final one.
        assert {task: attempts_of(before, task) for task in TASKS} == {
            task: [False, True] if task in INFRASTRUCTURE else [True] for task in TASKS
        }
        assert {task: server.asked[task] for task in FAULTS} == {"error": 4, "garbage": 4, "empty": 4, "refused": 2}
        check_tools(run)
        tries = {row["task_id"]: row["request_attempts"] for row in run.table("turns").to_pylist() if row["turn"] == 0}
        assert tries["once"] == 2
        assert {tries[task] for task in GOOD - {"once"}} == {1}

        asked = Counter(server.asked)
        server.healed = True
        (programs / "broken").unlink()
        summary = Running(run.path, "--retry", "model", verb="resume", env={"PATH": path}).end(0)
        assert (summary["failed"], summary["unfinished"]) == (0, 0)

    after = run.table("agents").to_pylist()
    again = {*INFRASTRUCTURE, "nonsense"}
    assert {task for task in TASKS if server.asked[task] > asked[task]} == again
    assert {
        task for task, ending in ended(after).items() if ending == ("finished", "submit", None, 1.0)
    } == GOOD | again
    assert {task: attempts_of(after, task) for task in again} == {
        task: [False, False, True] if task in INFRASTRUCTURE else [False, True] for task in again
    }
    untouched = [row for row in before if row["task_id"] not in again]
    assert sorted(untouched, key=str) == sorted((row for row in after if row["task_id"] not in again), key=str)
    counted = duckdb.sql(f"select count(*), count(distinct agent_id) from '{run.path}/agents/*.parquet' where final")
    assert counted.fetchall() == [(len(TASKS), len(TASKS))]


def attempts_of(rows: Sequence[Mapping[str, Any]], task: str) -> list[bool]:
    """Which of a task's attempts, that are numbered without a gap, are final."""
    own = sorted((row for row in rows if row["task_id"] == task), key=lambda row: int(row["attempt"]))
    assert [row["attempt"] for row in own] == list(range(len(own)))
    return [row["final"] for row in own]


def check_tools(run: Run) -> None:
    """What the agents that go on were told of their odd calls."""
    first = {row["task_id"]: row for row in run.table("tools").to_pylist() if (row["turn"], row["call"]) == (0, 0)}
    flood = first["flood"]
    assert (flood["status"], flood["output_bytes"], flood["truncated"]) == ("ok", 100_000_004, True)
    assert flood["output"].endswith("end\n") and len(flood["output"]) < 17_000
    assert first["bytes"]["output"] == "\ufffd\ufffdcaf\ufffd"
    assert first["nul"]["output"] == "a\ufffdb"
    assert (first["nul-in-call"]["status"], "NUL" in first["nul-in-call"]["output"]) == ("error", True)
    assert "surrogate" not in first, "its first turn was malformed"
