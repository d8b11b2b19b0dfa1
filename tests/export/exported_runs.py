"""Runs to export, written as recorders do, and a format that shows what it was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from concur_batch.export.form import Record, Unfit
from concur_batch.export.trajectory import Trajectory
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.writer import Writer
from tests.trace.trace_rows import plain_row

Row = dict[str, Any]


def agent(task: str, sample: int = 0, **values: Any) -> Row:
    """The final row of an agent; two turns of 6 tokens unless told otherwise."""
    turns = values.setdefault("turns", 2)
    return plain_row(
        "agents",
        **{
            "agent_id": f"{task}/{sample}",
            "task_id": task,
            "sample": sample,
            "attempt": 0,
            "final": True,
            "status": "finished",
            "end_reason": "answer",
            "context_tokens": 6 * turns,
            "output_tokens": 3 * turns,
            **values,
        },
    )


def turns_of(row: Row) -> list[tuple[Row, list[Row]]]:
    """The turns of an agent with their calls: two in each turn but the last. Ids tell agent, attempt and turn."""
    key = {name: row[name] for name in ("agent_id", "task_id", "sample", "attempt")}
    mark = sum(row["agent_id"].encode()) + 1000 * row["attempt"]
    found = []
    for number in range(row["turns"]):
        last = number == row["turns"] - 1
        calls = [
            plain_row(
                "tools", **key, turn=number, call=call, name="work", arguments=f'{{"step": {call}}}', status="ok",
                output=f"{row['agent_id']} {number} {call}",
            )
            for call in range(0 if last else 2)
        ]  # fmt: skip
        values = {
            "input_delta_ids": [mark, number, 1],
            "output_ids": [mark, number, 2],
            "output_logprobs": None if number % 2 else [-0.5, -1.0, -0.25],
            "output_text": f"Turn {number} of {row['agent_id']}",
            "output_message": None,
            "ids_estimated": False,
            "action": "answer" if last else "calls",
        }
        found.append((plain_row("turns", **key, turn=number, **values), calls))
    return found


def write_run(run_dir: Path, agents: Sequence[Row], /, *, rows_a_part: int = 7, **manifest: Any) -> Run:
    """A run of these agents, turn by turn over all of them, in small parts of two recorders and in their journals."""
    write_manifest(run_dir, {
        "run": run_dir.name, "status": "finished", "agents": len(agents), "started_at": "2026-11-30T10:00:00Z",
        "engine": [{"version": "0.5.23"}], "fingerprint": "f" * 32, "versions": {"concur-batch": "0.1.0"},
        "identity": {"tasks": "a" * 32, "model.tokenizer": "b" * 32},
        "workload": {
            "name": "small", "model": {"name": "/secret/place/Qwen3", "sampling": {"temperature": 0.7, "top_p": None}},
            "engine": {"kind": "sglang", "url": "http://secret:1"},
        },
        **manifest,
    })  # fmt: skip
    writers = [Writer(run_dir, "a"), Writer(run_dir, "b")]
    lines = [
        (number, encode_turn(*turns[depth]))
        for depth in range(max((row["turns"] for row in agents), default=0))
        for number, turns in enumerate(map(turns_of, agents))
        if depth < len(turns)
    ]
    lines += [(number, encode("agents", row)) for number, row in enumerate(agents)]
    for count, (number, line) in enumerate(lines, 1):
        writer = writers[number % 2]
        writer.append(line)
        if count % rows_a_part == 0:
            writer.rotate()
    for writer in writers:
        writer.sync()
        writer.open.close()
    return Run(run_dir)


class Plain:
    """What the tests export: ids, a mask, and the texts. A trajectory with an error does not fit."""

    schema = pa.schema(
        [
            pa.field("run", pa.string(), nullable=False),
            pa.field("agent_id", pa.string(), nullable=False),
            pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
            pa.field("loss_mask", pa.list_(pa.int8()), nullable=False),
            pa.field("said", pa.list_(pa.string()), nullable=False),
        ]
    )

    def __init__(self) -> None:
        self.seen = 0

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """One."""
        self.seen += 1
        if trajectory.agent["error"] is not None:
            raise Unfit("has an error")
        ids = [part for turn in trajectory.turns for part in (turn.input_delta_ids, turn.output_ids)]
        mask = [np.full(len(part), number % 2, np.int8) for number, part in enumerate(ids)]
        return [
            {
                "run": trajectory.run,
                "agent_id": trajectory.agent["agent_id"],
                "input_ids": np.concatenate(ids),
                "loss_mask": np.concatenate(mask),
                "said": [turn.row["output_text"] for turn in trajectory.turns],
            }
        ]

    def report(self) -> Mapping[str, int]:
        """How many were given."""
        return {"seen": self.seen}
