"""The Agent Trajectory Interchange Format, ATIF v1.0 to v1.7, as the project Harbor specifies it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from concur_batch.foreign.entries import Asked, Entry, Role, turns_of
from concur_batch.foreign.fields import ids_of, json_of, mapping, mappings, name_of, string, text_of, tools_of
from concur_batch.foreign.messages import FINISHED
from concur_batch.foreign.trajectory import Trajectory, Unfit

# What a step may do to the context, by `extra.context_management.boundary`: all others change what stood before.
_APPENDS = ("", "append")


def read_atif(document: Mapping[str, Any], name: str) -> Trajectory:
    """`name` is for one that does not name itself. The time from a step to the next one holds a generation
    beside the tools. Raises Unfit."""
    steps = mappings(document["steps"])
    moments = [*(_seconds_at(step.get("timestamp")) for step in steps), None]
    entries = [
        entry for number, step in enumerate(steps) for entry in _entries(step, moments[number], moments[number + 1])
    ]
    return Trajectory(
        name_of(document.get("trajectory_id"), document.get("session_id"), name),
        "atif",
        turns_of(entries),
        tools_of(mapping(document.get("agent")).get("tool_definitions")),
        FINISHED,
        "between_steps",
    )


def _entries(step: Mapping[str, Any], at_seconds: float | None, next_seconds: float | None) -> Iterator[Entry]:
    """What a step says, and the results that it observed."""
    boundary = mapping(mapping(step.get("extra")).get("context_management")).get("boundary")
    if string(boundary) not in _APPENDS:
        raise Unfit("a step replaces what the model saw before, and a replay only appends")
    results = mappings(mapping(step.get("observation")).get("results"))
    if step.get("source") != "agent":
        role: Role = "system" if step.get("source") == "system" else "user"
        yield Entry(role, _with_results(step, results), at_seconds=at_seconds)
    elif step.get("llm_call_count") == 0:  # calls that a program made, without the model
        yield Entry("user", _with_results(step, results), at_seconds=next_seconds)
    else:
        asked = tuple(map(_asked, mappings(step.get("tool_calls"))))
        metrics = mapping(step.get("metrics"))
        yield Entry(
            "assistant",
            text_of(step.get("message")),
            string(step.get("reasoning_content")),
            asked,
            at_seconds=at_seconds,
            copied=step.get("is_copied_context") is True,
            prompt_ids=ids_of(metrics.get("prompt_token_ids")),
            output_ids=ids_of(metrics.get("completion_token_ids")),
        )
        for result in results:
            content, call_id = text_of(result.get("content")), name_of(result.get("source_call_id"))
            yield Entry("tool" if asked else "user", content, call_id=call_id, at_seconds=next_seconds)


def _with_results(step: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> str:
    texts = [text_of(step.get("message")), *(text_of(result.get("content")) for result in results)]
    return "\n".join(text for text in texts if text)


def _asked(call: Mapping[str, Any]) -> Asked:
    return Asked(
        name_of(call.get("tool_call_id")), name_of(call.get("function_name"), "tool"), json_of(call.get("arguments"))
    )


def _seconds_at(timestamp: Any) -> float | None:
    """Of ISO 8601, without a zone as UTC."""
    try:
        moment = datetime.fromisoformat(string(timestamp))
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
