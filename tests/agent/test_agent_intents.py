"""An agent's calls and their intents: nothing that may have effects runs ahead of its record."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rollout_desk import SPEC, SUBMIT, WORK, Declared, Desk, Lines, SayingEngine, make, play

from concur_batch.agent.rollout import Rollout
from concur_batch.trace.intents import Intents, read_intents, unrecorded
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from tools_env.sandbox import SandboxEnvironment


def said(*calls: tuple[str, dict[str, Any]]) -> str:
    """A turn's text."""
    blocks = (json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
    return "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)


BASH, READ = ("bash", {"command": "echo x >>log"}), ("read_file", {"path": "log"})
WRITE = ("write_file", {"path": "log", "content": "x"})


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[SandboxEnvironment]:
    environment = SandboxEnvironment(tmp_path / "workspaces", ["bash", "read_file", "write_file", "submit"])
    yield environment
    await environment.close()


async def test_one_intent_a_turn_of_the_calls_that_may_have_effects(sandbox: SandboxEnvironment) -> None:
    lines = (said(READ, BASH, WRITE), said(READ), said(("no_such_tool", {})), said(BASH), SUBMIT)
    desk, rows = Desk(), Lines()
    services = replace(make(SayingEngine(*lines), desk, rows), tools=sandbox, specs=sandbox.specs())
    ending, _ = await Rollout(SPEC, services).run()
    assert (ending.reason, len(rows.rows("tools"))) == ("submit", 6)
    key = {"agent_id": "t/0", "task_id": "t", "sample": 0, "attempt": 0}
    told = [{name: row[name] for name in (*key, "turn", "calls")} for row in services.intents]
    bash, write = ({"name": name, "arguments": arguments} for name, arguments in (BASH, WRITE))
    assert told == [
        {**key, "turn": 0, "calls": [{"call": 1, **bash}, {"call": 2, **write}]},
        {**key, "turn": 3, "calls": [{"call": 0, **bash}]},
    ]


async def test_tools_without_effects_need_none() -> None:
    intents = Declared()
    _, row, _, _ = await play(WORK, SUBMIT, adjust=lambda services: replace(services, intents=intents))
    assert (row["turns"], intents) == (2, [])


async def test_no_call_begins_before_the_sync_of_its_intent_has_ended(
    sandbox: SandboxEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, go_on = threading.Event(), threading.Event()
    sync, told = os.fdatasync, []

    def slow(descriptor: int) -> None:
        syncing.set()
        assert go_on.wait(30)
        if not told:
            told.append("failed")
            raise OSError(5, "Input/output error")
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    intents = Intents(tmp_path, "host0", 0, lambda number: False)
    services = replace(
        make(SayingEngine(said(BASH), said(READ), SUBMIT), Desk(), Lines()),
        tools=sandbox,
        specs=sandbox.specs(),
        intents=intents,
    )
    running = asyncio.create_task(Rollout(SPEC, services).run())
    assert await asyncio.to_thread(syncing.wait, 30)
    (workspace,) = (tmp_path / "workspaces").glob("live-*/t*")
    await asyncio.sleep(0.2)  # time enough for a command, if one had begun
    assert [*workspace.iterdir()] == []
    go_on.set()
    while intents.last_error is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert [*workspace.iterdir()] == [], "a sync that has failed holds the call back"
    async with asyncio.timeout(30):
        ending, _ = await running
    assert ending.reason == "submit"
    assert [row["turn"] for row in read_intents(tmp_path)] == [0]
    await intents.close()


# Each agent's command adds its turn's number to a file, and then takes a while; the fourth of `a0/0` for ever.
_AGENTS = """
import asyncio, itertools, sys
from dataclasses import replace
from pathlib import Path
from rollout_desk import SPEC, Desk, SayingEngine, make
from test_agent_intents import said
from concur_batch.agent.rollout import Rollout
from concur_batch.trace.intents import Intents
from concur_batch.trace.outbox import Outbox
from concur_batch.trace.recorder import Recorder
from tools_env.sandbox import SandboxEnvironment

async def main(run_dir):
    recorder = Recorder(run_dir, "recorder0", commit_seconds=0.02)

    async def commit(lines):
        await recorder.commit(b"".join(lines))

    records = Outbox(commit)
    sandbox = SandboxEnvironment(run_dir / "workspaces", ["bash", "submit"])
    intents = Intents(run_dir, "host0", 0, records.is_sent)

    async def play(number):
        waits = [600 if (number, turn) == (0, 3) else 0.01 * number for turn in range(400)]
        lines = [said(("bash", {"command": f"echo {turn} >>log; sleep {wait}"})) for turn, wait in enumerate(waits)]
        services = make(SayingEngine(*lines), Desk(), records, turns=399, context_tokens=10**6)
        services = replace(services, tools=sandbox, specs=sandbox.specs(), intents=intents)
        await Rollout(replace(SPEC, agent_id=f"a{number}/0"), services).run()

    await asyncio.gather(*map(play, range(4)))

asyncio.run(main(Path(sys.argv[1])))
"""


def test_what_a_killed_host_has_left_beyond_the_last_turn_on_record_has_an_intent(tmp_path: Path) -> None:
    write_manifest(tmp_path, {})
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parents[1])])
    command = [sys.executable, "-c", _AGENTS, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}) as process:
        while 3 not in beyond(tmp_path).get("a0/0", ()) or len(turns_of(tmp_path)) < 12:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    intents = read_intents(tmp_path)
    meant = {(row["agent_id"], row["turn"]) for row in unrecorded(intents, turns_of(tmp_path))}
    found = {(agent, turn) for agent, turns in beyond(tmp_path).items() for turn in turns}
    assert ("a0/0", 3) in found <= meant
    assert turns_of(tmp_path) <= {(row["agent_id"], row["attempt"], row["turn"]) for row in intents}


def turns_of(run_dir: Path) -> set[tuple[str, int, int]]:
    rows = Run(run_dir).table("turns", ["agent_id", "attempt", "turn"]).to_pylist()
    return {(row["agent_id"], row["attempt"], row["turn"]) for row in rows}


def beyond(run_dir: Path) -> dict[str, set[int]]:
    """By agent, the turns whose command has run though no record says so."""
    ran = {
        path.parent.name.replace("%2F", "/"): {*map(int, path.read_text().split())}
        for path in (run_dir / "workspaces").glob("live-*/*/log")
    }
    recorded = turns_of(run_dir)
    return {agent: {turn for turn in turns if (agent, 0, turn) not in recorded} for agent, turns in ran.items()}
