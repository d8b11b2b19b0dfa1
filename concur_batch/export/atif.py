"""The Agent Trajectory Interchange Format, as Harbor's models define it. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from concur_batch.agent.instructions import Instructions
from concur_batch.agent.prompting import tool_schema
from concur_batch.export.columns import JSON
from concur_batch.export.dialogue import ChatMessage, Dialogues, call_id
from concur_batch.export.form import Record
from concur_batch.export.history import whole
from concur_batch.export.trajectory import Trajectory, Turn

VERSION = "ATIF-v1.7"

Step = dict[str, Any]

_REASONING = re.compile(r"(?s)\s*<think>(.*?)</think>\s*")
_TOTALS = {
    "total_prompt_tokens": ("input_tokens",),
    "total_completion_tokens": ("output_tokens",),
    "total_cached_tokens": ("cached_device_tokens", "cached_host_tokens", "cached_storage_tokens"),
}
_OF_AGENT = ("task_id", "sample", "status", "end_reason", "failure_class", "error", "reward", "answer")


class Atif:
    """A record a trajectory: a whole document of the format. `version` is that of the concur that made the run."""

    schema = pa.schema(
        [
            pa.field("schema_version", pa.string(), nullable=False),
            pa.field("session_id", pa.string(), nullable=False),
            pa.field("trajectory_id", pa.string(), nullable=False),
            *(pa.field(name, JSON, nullable=False) for name in ("agent", "steps", "final_metrics", "extra")),
        ]
    )

    def __init__(self, instructions: Instructions, dialogues: Dialogues, model: str, version: str) -> None:
        self._agent = {
            "name": "concur",
            "version": version,
            "model_name": model,
            "tool_definitions": [tool_schema(spec) for spec in instructions.specs],
            "extra": {"format": instructions.format},
        }
        self._dialogues = dialogues
        self._counts: Counter[str] = Counter()

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """See Form."""
        whole(trajectory)
        agent = trajectory.agent
        self._counts["ids are estimates"] += any(turn.row["ids_estimated"] for turn in trajectory.turns)
        steps = [{"step_id": number, **step} for number, step in enumerate(self._steps(trajectory), 1)]
        return [
            {
                "schema_version": VERSION,
                "session_id": trajectory.run,
                "trajectory_id": f"{trajectory.run}/{agent['agent_id']}",
                "agent": self._agent,
                "steps": steps,
                "final_metrics": {**_tokens(agent, _TOTALS), "total_steps": len(steps)},
                "extra": {name: agent[name] for name in _OF_AGENT if agent[name] is not None},
            }
        ]

    def report(self) -> Mapping[str, int]:
        """See Form."""
        return +self._counts

    def _steps(self, trajectory: Trajectory) -> Iterator[Step]:
        """One for each message; but results of calls stand in the step of the calls."""
        dialogue = self._dialogues.of(trajectory)
        number_of = {place: number for number, place in enumerate(dialogue.answers)}
        observed = False
        for place, message in enumerate(dialogue.messages):
            if place in number_of:
                number = number_of[place]
                turn = trajectory.turns[number]
                yield _answer(message, number, turn)
                observed = bool(turn.calls)
            elif not observed:
                yield {"source": "system" if message["role"] == "system" else "user", "message": message["content"]}


def _answer(message: ChatMessage, number: int, turn: Turn) -> Step:
    """A turn. Calls are told as they were executed, also those that stood in the text."""
    reasoning = message.get("reasoning_content")
    content = message["content"]
    if reasoning is None and (found := _REASONING.match(content)) is not None:
        reasoning, content = found[1].strip("\n"), content[found.end() :]
    step: Step = {"source": "agent", "message": content}
    if reasoning is not None:
        step["reasoning_content"] = reasoning
    if turn.calls:
        step["tool_calls"] = [
            {"tool_call_id": call_id(number, index), "function_name": call.name, "arguments": call.arguments}
            for index, (call, _) in enumerate(turn.calls)
        ]
        step["observation"] = {
            "results": [
                {"source_call_id": call_id(number, index), "content": result.output}
                for index, (_, result) in enumerate(turn.calls)
            ]
        }
    row = turn.row
    step["metrics"] = _metrics(turn)
    step["llm_call_count"] = 1
    step["extra"] = {
        "action": row["action"],
        "finish_reason": row["finish_reason"],
        "generation_seconds": round(row["generation_seconds"], 6),
        "tool_seconds": [round(result.seconds, 6) for _, result in turn.calls],
    }
    return step


_METRICS = {
    "prompt_tokens": ("input_tokens",),
    "completion_tokens": ("output_tokens",),
    "cached_tokens": ("cached_device_tokens", "cached_host_tokens", "cached_storage_tokens"),
}


def _metrics(turn: Turn) -> dict[str, Any]:
    """Ids and log probabilities only where they are the engine's own. A prompt's ids are those of all turns before it
    and its delta, which stands under `extra`: written out, they would grow with the square of the turns."""
    metrics: dict[str, Any] = _tokens(turn.row, _METRICS)
    if not turn.row["ids_estimated"]:
        metrics["completion_token_ids"] = turn.output_ids.tolist()
        metrics["extra"] = {"prompt_delta_token_ids": turn.input_delta_ids.tolist()}
        if turn.output_logprobs is not None:
            metrics["logprobs"] = [float(value) for value in turn.output_logprobs]
    return metrics


def _tokens(row: Mapping[str, Any], sums: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Sums of columns; none where the engine did not tell one of them."""
    return {
        name: sum(row[column] for column in columns)
        for name, columns in sums.items()
        if all(row[column] is not None for column in columns)
    }
