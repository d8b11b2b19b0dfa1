"""Which of the formats a document is of. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from concur_batch.foreign.atif import read_atif
from concur_batch.foreign.fields import mapping, mappings, string
from concur_batch.foreign.messages import read_messages
from concur_batch.foreign.mini import read_mini
from concur_batch.foreign.trajectory import Trajectory, Unfit


def documents(value: Any) -> Iterator[Any]:
    """The trajectories in a JSON value: itself, or each item of a list, and the subagents that ATIF embeds, which are
    agents of their own. A list of messages is one trajectory."""
    is_list = isinstance(value, list)
    if is_list and value and all("role" in mapping(item) for item in value):
        value, is_list = {"messages": value}, False
    waiting = list(reversed(value)) if is_list else [value]
    while waiting:
        document = waiting.pop()
        yield document
        if _is_atif(document):
            waiting += reversed(mappings(document.get("subagent_trajectories")))


def read(document: Any, name: str) -> Trajectory:
    """The trajectory in a document; `name` is for one that does not name itself. Raises Unfit."""
    fields = mapping(document)
    if _is_atif(fields):
        return read_atif(fields, name)
    if not isinstance(fields.get("messages"), list):
        raise Unfit("it is of no format that is known: mini-swe-agent, ATIF, or an object with `messages`")
    if string(fields.get("trajectory_format")).startswith("mini-swe-agent"):
        return read_mini(fields, name)
    return read_messages(fields, name)


def _is_atif(document: Any) -> bool:
    fields = mapping(document)
    return string(fields.get("schema_version")).startswith("ATIF") and isinstance(fields.get("steps"), list)
