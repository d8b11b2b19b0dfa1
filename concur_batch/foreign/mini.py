"""mini-swe-agent's `.traj.json`: `mini-swe-agent-1`, whose commands stand in the text, and `1.1`, whose messages are
those of a protocol with tools, OpenAI's for chats or for responses. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from concur_batch.agent.spec import Ending
from concur_batch.foreign.entries import Asked, Entry, turns_of
from concur_batch.foreign.fields import (
    json_of,
    mapping,
    mappings,
    name_of,
    number,
    small_int,
    string,
    text_of,
    tools_of,
)
from concur_batch.foreign.messages import FINISHED, entry_of
from concur_batch.foreign.trajectory import Trajectory, Unfit

# Its limits, by `info.exit_status`, as ends of ours.
_LIMITS = {
    "LimitsExceeded": "turns",
    "TimeExceeded": "wall_seconds",
    "ContextWindowExceededError": "context",
}


def read_mini(document: Mapping[str, Any], name: str) -> Trajectory:
    """`name` is for one that does not name itself. Raises Unfit."""
    entries = [_entry(message) for message in mappings(document["messages"]) if message.get("role") != "exit"]
    return Trajectory(
        name_of(document.get("instance_id"), name),
        "mini-swe-agent",
        turns_of(entries),
        tools_of(document.get("tools")),
        _ending(mapping(document.get("info"))),
        "measured",
    )


def _entry(message: Mapping[str, Any]) -> Entry:
    extra = mapping(message.get("extra"))
    moment = extra.get("timestamp") if "timestamp" in extra else message.get("timestamp")
    at_seconds, exit_code = number(moment), small_int(extra.get("returncode"))
    if isinstance(message.get("output"), list):
        return _response(mappings(message["output"]), at_seconds)
    if message.get("type") == "function_call_output":
        output, call_id = text_of(message.get("output")), name_of(message.get("call_id"))
        return Entry("tool", output, call_id=call_id, at_seconds=at_seconds, exit_code=exit_code)
    entry = entry_of(message, at_seconds, exit_code)
    if entry.role == "assistant" and not entry.asked:  # the commands stand in the text
        commands = [string(action.get("command")) for action in mappings(extra.get("actions"))]
        asked = tuple(Asked("", "bash", json_of({"command": command}), written=False) for command in commands)
        return replace(entry, asked=asked)
    return entry


def _response(items: Sequence[Mapping[str, Any]], at_seconds: float | None) -> Entry:
    """A turn in the protocol of responses: a list of what the model made."""
    said = "".join(text_of(item.get("content")) for item in items if item.get("type") == "message")
    thought = "".join(text_of(item.get("summary")) for item in items if item.get("type") == "reasoning")
    asked = tuple(
        Asked(name_of(item.get("call_id")), name_of(item.get("name"), "tool"), json_of(item.get("arguments")))
        for item in items
        if item.get("type") == "function_call"
    )
    return Entry("assistant", said, thought, asked, at_seconds=at_seconds)


def _ending(info: Mapping[str, Any]) -> Ending:
    """By the exit status. An agent that something else has ended did not do all of its work, as in a recorded run; one
    that gives no status at all is taken as it is. Raises Unfit."""
    if "exit_status" not in info:
        return FINISHED
    status = string(info["exit_status"])
    if status == "Submitted":
        return replace(FINISHED, answer=string(info.get("submission")))
    if status in _LIMITS:
        return Ending("limit", _LIMITS[status], "limit", status)
    if status == "RepeatedFormatError":
        return Ending("failed", "malformed", "model", status)
    raise Unfit(f"it did not come to an end of its own: exit status {name_of(status) or 'none'}")
