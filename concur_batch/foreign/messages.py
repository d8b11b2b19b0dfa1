"""Messages of OpenAI's protocol, a trajectory an object, as TRL trains on them and most recorders keep them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from concur_batch.agent.spec import Ending
from concur_batch.foreign.entries import Asked, Entry, Role, turns_of
from concur_batch.foreign.fields import json_of, mapping, mappings, name_of, string, text_of, tools_of
from concur_batch.foreign.trajectory import Trajectory

FINISHED = Ending("finished", "answer")

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def read_messages(document: Mapping[str, Any], name: str) -> Trajectory:
    """`name` is for one that does not name itself. Raises Unfit."""
    entries = [entry_of(message) for message in mappings(document["messages"])]
    named = name_of(document.get("instance_id"), document.get("task_id"), document.get("id"), name)
    return Trajectory(named, "messages", turns_of(entries), tools_of(document.get("tools")), FINISHED, "measured")


def entry_of(message: Mapping[str, Any], at_seconds: float | None = None, exit_code: int | None = None) -> Entry:
    """A message of any role; one that is not known is as good as the user's. Raises Unfit."""
    role = _ROLES.get(string(message.get("role")), "user")
    if role == "assistant":
        reasoning = string(message.get("reasoning_content")) or string(message.get("reasoning"))
        asked = tuple(map(_asked, mappings(message.get("tool_calls"))))
        return Entry(role, text_of(message.get("content")), reasoning, asked, at_seconds=at_seconds)
    return Entry(
        role,
        text_of(message.get("content")),
        call_id=name_of(message.get("tool_call_id")),
        name=name_of(message.get("name")),
        at_seconds=at_seconds,
        exit_code=exit_code,
    )


def _asked(call: Mapping[str, Any]) -> Asked:
    function = mapping(call.get("function"))
    return Asked(name_of(call.get("id")), name_of(function.get("name"), "tool"), json_of(function.get("arguments")))
