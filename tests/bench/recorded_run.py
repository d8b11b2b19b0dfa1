"""A run's directory, as `concur run` would leave it: agents without control on a simulated engine of known costs."""

from __future__ import annotations

import heapq
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.engine import EngineCore
from concur_batch.simulator.request import Completion, Request
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.writer import Writer
from concur_batch.workload.schema import Concur, NoControl

Row = dict[str, Any]

SHARED_TOKENS = 40


class RecordedAgents:
    """Closed loops of generations and tool waits; their rows of the tables `turns`, `tools` and `agents`."""

    def __init__(self, agents: int, turns: int, config: EngineConfig, cost: CostModel, seed: int = 1) -> None:
        rng = random.Random(seed)
        self.turns: list[Row] = []
        self.tools: list[Row] = []
        self.agents: list[Row] = []
        self._core = EngineCore(config, cost)
        self._turns = turns
        self._lengths = {
            f"t{number:03d}/0": [(rng.randint(50, 300), rng.randint(5, 40), rng.uniform(0.1, 4)) for _ in range(turns)]
            for number in range(agents)
        }
        self._histories = {name: np.arange(SHARED_TOKENS, dtype=np.int32) for name in self._lengths}
        self._ready: list[tuple[float, str]] = [(0.0, name) for name in self._lengths]
        self._deltas: dict[str, Any] = {}
        self._done = dict.fromkeys(self._lengths, 0)
        self._unused = 1000
        self._run()

    def write(self, run_dir: Path, pool_tokens: int, **control: Any) -> Path:
        """The directory, whose manifest names a real engine and no GPU."""
        policy = Concur(policy="concur", **control) if control else NoControl(policy="none")
        write_manifest(run_dir, {
            "run": run_dir.name, "status": "finished", "agents": len(self.agents), "simulated": False,
            "seconds": max(row["ended_seconds"] for row in self.agents),
            "engine": [{"page_size": 1, "context_tokens": 8192}], "pools": {"0": pool_tokens},
            "workload": {
                "name": "recorded", "tasks": {"file": "/nowhere/tasks.jsonl", "prompt": "x"}, "replay": None,
                "model": {"name": "m", "tokenizer": "/nowhere"}, "engine": {"kind": "sglang", "url": "http://gpu:1"},
                "control": policy.model_dump(mode="json"),
            },
        })  # fmt: skip
        writer = Writer(run_dir, "r")
        for row in self.turns:
            writer.append(encode_turn(row, [tool for tool in self.tools if _key(tool) == _key(row)]))
        for row in self.agents:
            writer.append(encode("agents", row))
        writer.rotate()
        return run_dir

    def _run(self) -> None:
        while self._ready or self._core.next_event_seconds() is not None:
            event = self._core.next_event_seconds()
            now = min(self._ready[0][0] if self._ready else event or 0.0, np.inf if event is None else event)
            for completion in self._core.advance(now):
                self._complete(completion)
            while self._ready and self._ready[0][0] <= now:
                self._generate(heapq.heappop(self._ready)[1], now)

    def _generate(self, name: str, now: float) -> None:
        new_tokens, output_tokens, _ = self._lengths[name][self._done[name]]
        delta = self._fresh(new_tokens)
        history = np.concatenate((self._histories[name], delta))
        self._deltas[name] = history if self._done[name] == 0 else delta
        self._histories[name] = history
        said = self._fresh(output_tokens)
        self._core.submit(Request(name, history, said, output_tokens, ignore_eos=True), now)

    def _complete(self, done: Completion) -> None:
        name, turn = done.rid, self._done[done.rid]
        assert done.scheduled_seconds is not None
        assert done.first_token_seconds is not None
        key = {"agent_id": name, "task_id": name[:-2], "sample": 0, "attempt": 0}
        self.turns.append(_row("turns", **key, turn=turn, replica="0", input_delta_ids=self._deltas[name].tolist(),
            input_tokens=done.prompt_tokens, output_tokens=done.completion_tokens,
            cached_device_tokens=done.cached_tokens, cached_host_tokens=0,
            generation_started_seconds=done.arrival_seconds,
            engine_queue_seconds=done.scheduled_seconds - done.arrival_seconds,
            engine_prefill_seconds=done.first_token_seconds - done.scheduled_seconds,
            engine_decode_seconds=done.end_seconds - done.first_token_seconds))  # fmt: skip
        self._histories[name] = np.concatenate((self._histories[name], done.output_ids))
        self._done[name] += 1
        if self._done[name] < self._turns:
            seconds = self._lengths[name][turn][2]
            self.tools.append(
                _row("tools", **key, turn=turn, call=0, name="work", arguments="{}", status="ok", seconds=seconds)
            )
            heapq.heappush(self._ready, (done.end_seconds + seconds, name))
        else:
            self.agents.append(_row("agents", **key, final=True, status="finished", end_reason="answer", turns=turn + 1,
                                    started_seconds=0.0, ended_seconds=done.end_seconds))  # fmt: skip

    def _fresh(self, tokens: int) -> Any:
        self._unused += tokens
        return np.arange(self._unused - tokens, self._unused, dtype=np.int32)


def _key(row: Row) -> tuple[str, int]:
    return row["agent_id"], row["turn"]


def _row(table: str, **values: Any) -> Row:
    """With something in each column that cannot be null."""
    row: Row = {}
    for field in SCHEMAS[table]:
        if not field.nullable:
            kind = str(field.type)
            row[field.name] = (
                0 if "int" in kind and "list" not in kind else 0.0 if kind == "double" else False if kind == "bool"
                else [] if "list" in kind else datetime(2026, 1, 2, tzinfo=UTC) if "timestamp" in kind else ""
            )  # fmt: skip
    return row | values
