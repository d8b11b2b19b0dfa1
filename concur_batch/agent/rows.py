"""An agent's rows of the tables `agents`, `turns` and `tools`. Pure.

`key` holds the columns that all of them begin with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from concur_batch.agent.claim import Pass
from concur_batch.agent.formats.action import Call
from concur_batch.agent.spec import Ending
from concur_batch.agent.tally import Tally
from concur_batch.agent.transcript import TurnTokens
from concur_batch.engine.protocol import Generation
from tools_env.catalogue import SUBMIT
from tools_env.spec import ToolResult

Row = dict[str, Any]


def agent_row(key: Mapping[str, Any], ending: Ending, tally: Tally) -> Row:
    """What is known of an attempt by its ending and its sums."""
    return {
        **key,
        "status": ending.status,
        "end_reason": ending.reason,
        "failure_class": ending.failure_class,
        "error": ending.error,
        "answer": ending.answer,
        **{name: getattr(tally, name) for name in Tally.__slots__},
    }


def generation_row(key: Mapping[str, Any], generation: Generation, tokens: TurnTokens | None, leave: Pass) -> Row:
    """What is known of a turn by its generation and the leave for it; `tokens` is None where no hits are told."""
    return {
        **key,
        "request_attempts": generation.attempts,
        "output_ids": np.asarray(generation.output_ids, dtype=np.int32),
        "output_logprobs": generation.logprobs,
        "output_message": None if generation.message is None else orjson.dumps(generation.message).decode(),
        "ids_estimated": generation.message is not None,
        "finish_reason": generation.finish_reason,
        "input_tokens": generation.input_tokens,
        "output_tokens": generation.output_tokens,
        "cached_device_tokens": generation.cached_device_tokens,
        "cached_host_tokens": generation.cached_host_tokens,
        "cached_storage_tokens": generation.cached_storage_tokens,
        "first_tokens": None if tokens is None else tokens.first,
        "recomputed_tokens": None if tokens is None else tokens.recomputed,
        "rounding_tokens": None if tokens is None else tokens.rounding,
        "retractions": generation.retractions,
        "context_tokens": generation.context_tokens,
        "pending_seconds": leave.pending_seconds,
        "paused_seconds": leave.paused_seconds,
        "queue_seconds": leave.queue_seconds,
        "engine_queue_seconds": generation.queue_seconds,
        "engine_prefill_seconds": generation.prefill_seconds,
        "engine_decode_seconds": generation.decode_seconds,
    }


def tool_row(
    key: Mapping[str, Any], turn: int, index: int, call: Call, result: ToolResult, started_seconds: float
) -> Row:
    """The call of this index in a turn, and its result."""
    return {
        **key,
        "turn": turn,
        "call": index,
        "name": call.name,
        "arguments": orjson.dumps(call.arguments).decode(),
        "status": result.status,
        "output": result.output,
        "exit_code": result.exit_code,
        "truncated": result.truncated,
        "output_bytes": result.output_bytes,
        "started_seconds": started_seconds,
        "queue_seconds": result.queue_seconds,
        "seconds": result.seconds,
    }


def intent_row(key: Mapping[str, Any], turn: int, calls: Sequence[tuple[int, Call]], started_seconds: float) -> Row:
    """What a turn is about to run: its calls that may have effects, with their indexes in it."""
    return {
        **key,
        "turn": turn,
        "started_seconds": started_seconds,
        "calls": [{"call": index, "name": call.name, "arguments": call.arguments} for index, call in calls],
    }


def recorded_call(row: Mapping[str, Any]) -> tuple[Call, ToolResult]:
    """A call and its result back from its row of `tools`."""
    arguments = orjson.loads(row["arguments"])
    submitted = row["name"] == SUBMIT.name and row["status"] == "ok"
    result = ToolResult(
        row["status"],
        row["output"],
        row["seconds"],
        row["queue_seconds"],
        row["exit_code"],
        row["truncated"],
        row["output_bytes"],
        arguments["answer"] if submitted else None,
    )
    return Call(row["name"], arguments), result
