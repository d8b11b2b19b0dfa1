"""Trajectories to replay as a Parquet file, which `concur replay-from` writes and a workload names: a row an agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from concur_batch.agent.spec import AgentSpec, Ending
from concur_batch.agent.trajectory import Exchange, Step, Trajectory
from concur_batch.foreign.replayed import Replayed
from concur_batch.trace.files import TraceError, replacing
from tools_env.spec import ToolResult

# Agents of a row group: some megabytes of ids and texts.
_GROUP = 64
# In the file's metadata: the version of this form, and which tokenizer the ids are of.
_VERSION, _TOKENIZER = b"concur.replay", b"concur.tokenizer"

_CALL = pa.struct(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("arguments", pa.string(), nullable=False),  # JSON object
        pa.field("status", pa.string(), nullable=False),  # ok | error
        pa.field("output", pa.string(), nullable=False),
        pa.field("exit_code", pa.int32()),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("timing", pa.string(), nullable=False),  # measured | between_steps | drawn: how the seconds are known
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("agent_id", pa.string(), nullable=False),
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),  # how the agent ends, as in a run's table of agents
        pa.field("end_reason", pa.string(), nullable=False),
        pa.field("failure_class", pa.string()),
        pa.field("error", pa.string()),
        pa.field("answer", pa.string()),
        pa.field("format", pa.string(), nullable=False),  # mini-swe-agent | atif | messages
        pa.field("source", pa.string(), nullable=False),  # the file that it was read from, and the line in it
        pa.field("recorded_ids", pa.bool_(), nullable=False),  # the source's own; others are made from its texts
        # By turn:
        pa.field("new_ids", pa.list_(pa.list_(pa.int32())), nullable=False),  # what comes before it
        pa.field("output_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("calls", pa.list_(pa.list_(_CALL)), nullable=False),
    ]
)


def write_agents(path: Path, agents: Iterable[Replayed], tokenizer: str) -> None:
    """Write them as they come; `path` is whole or, if anything is raised, as it was. `tokenizer` is its digest. Raises
    TraceError where the disk fails, and what `agents` raise."""
    schema = SCHEMA.with_metadata({_VERSION: b"1", _TOKENIZER: tokenizer.encode()})
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        rows = map(_row, agents)
        while group := list(islice(rows, _GROUP)):
            writer.write_table(pa.Table.from_pylist(group, schema))


def read_agents(path: Path) -> list[AgentSpec]:
    """The agents in the file's order. Raises TraceError where it is none of `write_agents`."""
    found: list[AgentSpec] = []
    with _opened(path) as file:
        try:
            for batch in file.iter_batches(batch_size=_GROUP):
                found += _agents(batch)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise TraceError(f"cannot read {path}: {error}") from error
    return found


def count_agents(path: Path) -> int:
    """How many agents the file holds. Raises TraceError."""
    with _opened(path) as file:
        return int(file.metadata.num_rows)


def tokenizer_of(path: Path) -> str:
    """The digest of the tokenizer that the file's ids are of. Raises TraceError."""
    with _opened(path) as file:
        return str(file.schema_arrow.metadata[_TOKENIZER].decode())


def tokenizer_digest(directory: Path) -> str:
    """Of a model directory: what decides which ids stand for a text. Raises OSError."""
    return blake2b((directory / "tokenizer.json").read_bytes(), digest_size=16).hexdigest()


def _opened(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"{path} is no file of `concur replay-from`: {str(error).splitlines()[0]}") from error
    if _VERSION not in (file.schema_arrow.metadata or {}):
        file.close()
        raise TraceError(f"{path} is no file of `concur replay-from`, though it is Parquet")
    return file


def _row(replayed: Replayed) -> dict[str, Any]:
    agent = replayed.agent
    assert agent.trajectory is not None, "it is replayed"
    ending, steps = agent.trajectory.ending, agent.trajectory.steps
    return {
        "agent_id": agent.agent_id,
        "task_id": agent.task_id,
        "sample": agent.sample,
        "seed": agent.seed,
        "status": ending.status,
        "end_reason": ending.reason,
        "failure_class": ending.failure_class,
        "error": ending.error,
        "answer": ending.answer,
        "format": replayed.format,
        "source": replayed.source,
        "recorded_ids": replayed.recorded_ids,
        "new_ids": [step.new_ids for step in steps],
        "output_tokens": [step.output_tokens for step in steps],
        "calls": [
            [{**_call(exchange), "timing": timing} for exchange, timing in zip(step.exchanges, timings, strict=True)]
            for step, timings in zip(steps, replayed.timings, strict=True)
        ],
    }


def _call(exchange: Exchange) -> dict[str, Any]:
    result = exchange.result
    return {
        "name": exchange.name,
        "arguments": orjson.dumps(dict(exchange.arguments)).decode(),
        "status": result.status,
        "output": result.output,
        "exit_code": result.exit_code,
        "seconds": result.seconds,
    }


def _agents(batch: pa.RecordBatch) -> Iterator[AgentSpec]:
    ids = batch.column("new_ids")
    for row, turns in zip(batch.drop_columns(["new_ids"]).to_pylist(), ids, strict=True):
        steps = tuple(
            Step(np.asarray(turn.values, np.int32), tokens, tuple(map(_exchange, calls)))
            for turn, tokens, calls in zip(turns.values, row["output_tokens"], row["calls"], strict=True)
        )
        ending = Ending(row["status"], row["end_reason"], row["failure_class"], row["error"], row["answer"])
        yield AgentSpec(
            agent_id=row["agent_id"],
            task_id=row["task_id"],
            sample=row["sample"],
            seed=row["seed"],
            prompt="",
            trajectory=Trajectory(steps, ending),
        )


def _exchange(call: dict[str, Any]) -> Exchange:
    output = call["output"]
    result = ToolResult(
        call["status"], output, call["seconds"], exit_code=call["exit_code"], output_bytes=len(output.encode())
    )
    return Exchange(call["name"], orjson.loads(call["arguments"]), result)
