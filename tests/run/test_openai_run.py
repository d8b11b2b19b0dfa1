"""Whole runs against a server of chat completions: real Ray, real sandboxed tools, and what nobody tells said so."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from concur_batch.trace.reading import Run
from tests.engine.chat_server import ChatServer, ChatServing, Said, calls, says, tokens_of
from tests.run.command import ROOT, Running, concur, rows_so_far, wait_for

AGENTS = 24


def works(messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Said:
    """A model that reads its numbers and counts lines, calls wrongly once, adds them in its sandbox, and submits."""
    assert {tool["function"]["name"] for tool in body["tools"]} == {"bash", "read_file", "submit"}
    asked = sum(message["role"] == "assistant" for message in messages)
    match asked:
        case 0:
            reads = ("read_file", {"path": "numbers.txt"}), ("bash", {"command": "wc -l < numbers.txt"})
            return calls(*reads, content="I look.", prefix="look")
        case 1:
            return calls(("bash", '{"command": "paste'), prefix="wrong")
        case 2:
            assert "does not parse" in messages[-1]["content"]
            return calls(("bash", {"command": "paste -sd+ numbers.txt | bc"}), prefix="add")
        case _:
            return calls(("submit", {"answer": messages[-1]["content"].strip()}), prefix="end")


def reacts(messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Said:
    """The same without calls, by lines of text."""
    assert "tools" not in body
    assert {message["role"] for message in messages} <= {"system", "user", "assistant"}
    observed = re.findall(r"^Observation: (\d+)$", messages[-1]["content"], re.MULTILINE)
    if observed:
        return says(f"Thought: Done.\nFinal Answer: {observed[0]}")
    return says('Thought: I add.\nAction: bash\nAction Input: {"command": "paste -sd+ numbers.txt | bc"}')


def write_workload(directory: Path, url: str, agents: int = AGENTS, **blocks: Any) -> Path:
    tasks = [
        {"id": f"t{n}", "files": {"numbers.txt": f"{n}\n{10 * n}\n100\n"}, "answer": str(11 * n + 100)}
        for n in range(agents)
    ]
    (directory / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    workload = {
        "name": "chat",
        "tasks": {"file": "tasks.jsonl", "prompt": "Add up the numbers in numbers.txt.", "files": "files"},
        "model": {"name": "m", "tokenizer": str(ROOT / "workloads/demo_model")},
        "engine": {"kind": "openai", "url": url},
        "tools": {"kind": "sandbox", "names": ["bash", "read_file", "submit"]},
        "control": {"policy": "concur", "period_seconds": 0.2, "initial_window": 4},
        "verify": [{"kind": "answer", "column": "answer", "match": "number"}],
        "output": str(directory / "runs"),
        **blocks,
    }
    path = directory / "workload.yaml"
    path.write_text(yaml.safe_dump(workload))
    return path


def test_agents_work_with_calls_and_their_ids_are_estimates(tmp_path: Path) -> None:
    server = ChatServer(works, tells_cached=True)
    server.key = "secret"
    server.answer_seconds = 0.2  # the batch goes over many beats, so that more than one row tells of hits
    with ChatServing(server) as url:
        engine = {"kind": "openai", "url": f"{url}/v1", "api_key": "CHAT_KEY", "pool_tokens": 5000}
        workload = write_workload(tmp_path, url, engine=engine)
        done = concur("run", workload, "--json", env={"CHAT_KEY": "secret"})
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    run = Run(summary["run_dir"])
    assert (summary["finished"], summary["reward_mean"], summary["malformed_turns"]) == (AGENTS, 1.0, AGENTS)
    final, turns = run.agents_final().to_pylist(), run.table("turns").to_pylist()
    assert [(row["turns"], row["tool_calls"], row["attempt"]) for row in final] == [(4, 4, 0)] * AGENTS

    # The server's own counts, and our estimates of the ids, which are marked as such.
    asked = [tokens_of(body["messages"]) for body in server.bodies[1:]]  # the first is the probe's
    assert sorted(turn["input_tokens"] for turn in turns) == sorted(asked)
    assert all(turn["ids_estimated"] and len(turn["output_ids"]) > 0 for turn in turns)
    assert run.manifest["ids_estimated"] is True
    assert (run.manifest["pools"], run.manifest["simulated"]) == ({"0": 5000}, False)
    for turn in turns:
        computed = turn["first_tokens"] + turn["recomputed_tokens"] + turn["rounding_tokens"]
        assert turn["cached_device_tokens"] + computed == turn["input_tokens"]
        assert turn["retractions"] is None
    cached = sum(turn["cached_device_tokens"] for turn in turns)
    assert summary["hit_rate"] == pytest.approx(cached / sum(asked), abs=1e-4)
    assert summary["hit_rate"] > 0.5

    # U is estimated and has moved, H is the requests' own, and the row says so.
    control = [row for row in run.table("control").to_pylist() if not row["stale"]]  # a busy server answers late
    assert {row["estimated"] for row in control} == {True}
    assert {row["pool_tokens"] for row in control} == {5000}
    assert max(row["usage"] for row in control) > 0
    assert sum(row["hit_rate"] is not None for row in control) > 1
    assert "control has stopped" not in done.stderr
    assert "KV usage: U is estimated" in done.stderr
    assert done.stderr.count("U is estimated") == 1


def test_nothing_told_is_said_and_the_window_stays(tmp_path: Path) -> None:
    with ChatServing(ChatServer(reacts)) as url:
        workload = write_workload(tmp_path, url, agent={"format": "react"})
        done = concur("run", workload, env={"COLUMNS": "160"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the window stays at 4 (control.initial_window): set engine.pool_tokens, or a cap" in done.stdout
    assert "hit rate not told, recomputed not told of prefill, evictions not told" in done.stdout
    [manifest] = (tmp_path / "runs").glob("*/manifest.json")
    run = Run(manifest.parent)
    assert [row["reward"] for row in run.agents_final().to_pylist()] == [1.0] * AGENTS
    assert {(row["window_after"], row["usage"], row["hit_rate"], row["estimated"])
            for row in run.table("control").to_pylist()} == {(4, None, None, False)}  # fmt: skip
    assert {row["cached_device_tokens"] for row in run.table("agents").to_pylist()} == {None}


def test_a_server_that_is_gone_for_a_while_costs_no_agent(tmp_path: Path) -> None:
    server = ChatServer(works)
    held = threading.Event()

    def slowly(messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]) -> Said:
        if not held.is_set() and len(server.bodies) > AGENTS:
            server.is_up = False
            held.set()
        return works(messages, body) if "tools" in body else says("Yes.")

    server.model = slowly
    with ChatServing(server) as url:
        running = Running(write_workload(tmp_path, url, control={"policy": "none", "period_seconds": 0.2}))
        assert held.wait(90)
        wait_for(lambda: "closed" in states(tmp_path / "runs"), "the pool to close")
        server.is_up = True
        summary = running.end(0)
    assert (summary["finished"], summary["reward_mean"]) == (AGENTS, 1.0)
    final = Run(summary["run_dir"]).agents_final().to_pylist()
    assert [row["attempt"] for row in final] == [0] * AGENTS


def states(output: Path) -> set[str]:
    """The pool's states in the control rows so far."""
    return {
        row["pool_state"]
        for found in output.glob("*/manifest.json")
        for row in Run(found.parent).table("control").to_pylist()
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"names": ["qwen"]}, "serves no 'm', but qwen: mend model.name"),
        ({"takes_tools": False}, "--enable-auto-tool-choice"),
        ({"key": "secret"}, "engine.api_key"),
    ],
)
def test_what_the_server_refuses_is_one_line_before_any_agent_starts(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    server = ChatServer(works)
    vars(server).update(changes)
    with ChatServing(server) as url:
        done = concur("run", write_workload(tmp_path, url))
    assert done.returncode == 1
    assert said in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stdout + done.stderr
    assert rows_so_far(tmp_path / "runs", "turns") == 0
