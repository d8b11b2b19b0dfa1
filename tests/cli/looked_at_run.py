"""A run's directory as a killed command would leave it: agents of every kind of end, and texts that are no friends of a
terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.writer import Writer
from tests.trace.trace_rows import plain_row

Row = dict[str, Any]

DEMO = Path(__file__).parents[2] / "workloads" / "demo_model"
TOKENIZER = load_tokenizer(DEMO)
PROMPT = "<|im_start|>user\nSum it.<|im_end|>\n<|im_start|>assistant\n"
RETRY = "<|im_end|>\n<|im_start|>user\na call must stand in tags<|im_end|>\n<|im_start|>assistant\n"
CODE = 'print("a\\n")\nprint(sum([1, 2]))'
HOSTILE = "\x1b[31mred\x1b[0m\x1b]0;owned\x07 \x9b2J\u202eback\r\n"
LONG = HOSTILE + "".join(f"line {number} of many\n" for number in range(100))


def call(agent: str, turn: int, name: str, arguments: Row, output: str, attempt: int = 0, **values: Any) -> Row:
    """The only call of a turn."""
    text = json.dumps(arguments)
    told = {"status": "ok", "exit_code": 0, "truncated": False, "output_bytes": len(output), "queue_seconds": 0.0,
            "seconds": 0.25}  # fmt: skip
    return plain_row("tools", **_key(agent, attempt), turn=turn, call=0, name=name, arguments=text, output=output,
                     **(told | values))  # fmt: skip


def turn(agent: str, number: int, text: str, delta: str = "", attempt: int = 0, **values: Any) -> Row:
    """It began at `number + 1` s, had 100 tokens of prompt, of which 60 were cached, and generated 10."""
    told = {
        "input_delta_ids": TOKENIZER.encode(delta or "x"), "output_ids": TOKENIZER.encode(text), "output_text": text,
        "finish_reason": "stop", "action": "calls", "replica": "0", "request_attempts": 1, "input_tokens": 100,
        "output_tokens": 10, "cached_device_tokens": 60, "cached_host_tokens": 0, "cached_storage_tokens": 0,
        "first_tokens": 35, "recomputed_tokens": 5, "rounding_tokens": 0, "context_tokens": 110 * (number + 1),
        "started_seconds": number + 1.0, "ended_seconds": number + 1.75, "pending_seconds": 0.0, "paused_seconds": 0.0,
        "queue_seconds": 0.0, "generation_seconds": 0.5, "tool_queue_seconds": 0.0, "tool_seconds": 0.25,
    }  # fmt: skip
    return plain_row("turns", **_key(agent, attempt), turn=number, **(told | values))


def end(agent: str, status: str, reason: str, turns: int, attempt: int = 0, **values: Any) -> Row:
    """It began at 1 s and ended at `2 * turns + 1` s."""
    told = {
        "final": True, "status": status, "end_reason": reason, "reward": None, "turns": turns, "tool_calls": turns,
        "malformed_turns": 0, "pauses": 0, "input_tokens": 100 * turns, "output_tokens": 10 * turns,
        "context_tokens": 110 * turns, "started_seconds": 1.0, "ended_seconds": 2.0 * turns + 1, "pending_seconds": 0.5,
        "paused_seconds": 0.0, "queue_seconds": 0.0, "generation_seconds": 0.5 * turns, "tool_seconds": 0.25 * turns,
        "tool_queue_seconds": 0.0, "host": "host0", "replica": "0", "seed": 5,
    }  # fmt: skip
    return plain_row("agents", **_key(agent, attempt), **(told | values))


def hermes(name: str, arguments: Row, thought: str = "") -> str:
    """A turn's text with one call."""
    return f"{thought}\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def write_run(path: Path, **manifest: Any) -> Path:
    """Six agents in two tasks and two others. One of them has not begun, and one is under way, in the journal."""
    told: Row = {
        "run": path.name, "status": "running", "agents": 6, "simulated": True, "started_at": "2026-11-30T01:31:11Z",
        "workload": {"control": {"policy": "none"}, "engine": {"kind": "simulated"}, "agent": {"format": "hermes"},
                     "model": {"name": "demo"}},
    }  # fmt: skip
    write_manifest(path, told | manifest)
    shutil.copytree(DEMO, path / "model")
    writer = Writer(path, "r")

    def add(turn: Row, *calls: Row) -> None:
        writer.append(encode_turn(turn, list(calls)))

    code, path_ = {"code": CODE}, {"path": "big.txt"}
    add(turn("sum/0", 0, hermes("python", code, "I count."), PROMPT, pending_seconds=0.5),
        call("sum/0", 0, "python", code, "Traceback\nKeyError: 'b'", status="error", exit_code=1))  # fmt: skip
    add(turn("sum/0", 1, hermes("submit", {"answer": "3"}), paused_seconds=2.0, replica="1"),
        call("sum/0", 1, "submit", {"answer": "3"}, "submitted"))  # fmt: skip
    writer.append(encode("agents", end("sum/0", "finished", "submit", 2, reward=1.0, answer="3", verify_seconds=0.5,
                                       verify_output="all good")))  # fmt: skip
    for number in range(2):
        delta = RETRY if number else PROMPT
        add(turn("sum/1", number, f"just words {number}", delta, action="malformed"))
    writer.append(encode("agents", end("sum/1", "failed", "malformed", 2, failure_class="model", tool_calls=0,
                                       malformed_turns=2, error="the reply is\nempty")))  # fmt: skip
    add(turn("list/0", 0, hermes("read_file", path_, "I look."), PROMPT),
        call("list/0", 0, "read_file", path_, LONG, truncated=True, output_bytes=70_000))  # fmt: skip
    writer.append(encode("agents", end("list/0", "limit", "turns", 1, reward=0.0, failure_class="limit")))
    add(turn("list/1", 0, hermes("read_file", path_), PROMPT), call("list/1", 0, "read_file", path_, "first"))
    writer.append(encode("agents", end("list/1", "failed", "EngineError", 1, final=False,
                                       failure_class="infrastructure", error="gone")))  # fmt: skip
    writer.rotate()
    add(turn("list/1", 0, hermes("read_file", path_), PROMPT, attempt=1, cached_device_tokens=None,
             recomputed_tokens=None, first_tokens=None, rounding_tokens=None),
        call("list/1", 0, "read_file", path_, "second", attempt=1))  # fmt: skip
    writer.append(encode("agents", end("list/1", "finished", "answer", 1, attempt=1, reward=0.0, answer="none")))
    writer.rotate()
    add(turn("wait/0", 0, hermes("read_file", path_, "I wait."), PROMPT), call("wait/0", 0, "read_file", path_, "ok"))
    writer.sync()
    return path


def _key(agent: str, attempt: int) -> Row:
    task, _, sample = agent.rpartition("/")
    return {"agent_id": agent, "task_id": task, "sample": int(sample), "attempt": attempt}
