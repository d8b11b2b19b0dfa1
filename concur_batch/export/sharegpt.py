"""Conversations as ShareGPT's, by LLaMA-Factory's convention. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import orjson
import pyarrow as pa

from concur_batch.export.columns import SOURCE
from concur_batch.export.dialogue import ChatMessage
from concur_batch.export.form import Record
from concur_batch.export.retelling import Part, Retelling
from concur_batch.export.trajectory import Trajectory

# How LLaMA-Factory joins the results of several calls of one turn.
_NEXT_RESULT = "\n</tool_response>\n<tool_response>\n"


class ShareGpt:
    """A record a trajectory, or a part of one whose history was rewritten. After the system prompt, `human` or
    `observation` and `gpt` or `function_call` take turns; the last is the model's."""

    schema = pa.schema(
        [
            *SOURCE,
            pa.field(
                "conversations",
                pa.list_(pa.struct([pa.field("from", pa.string()), pa.field("value", pa.string())])),
                nullable=False,
            ),
            pa.field("tools", pa.string(), nullable=False),  # JSON, or empty
        ]
    )

    def __init__(self, retelling: Retelling) -> None:
        self._retelling = retelling

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """See Form."""
        return [
            {**part.source, "conversations": list(_conversation(part)), "tools": _tools(part.tools)}
            for part in self._retelling.parts(trajectory)
        ]

    def report(self) -> Mapping[str, int]:
        """See Form."""
        return self._retelling.counts


def _conversation(part: Part) -> Iterator[dict[str, str]]:
    texts = iter(part.texts)
    for role, group in groupby(part.messages, lambda message: message["role"]):
        said = list(group)
        contents = [message["content"] for message in said]
        match role:
            case "assistant":
                yield from (_answer(message, next(texts)) for message in said)
            case "tool":
                yield {"from": "observation", "value": _NEXT_RESULT.join(contents)}
            case "system":
                yield {"from": "system", "value": "\n\n".join(contents)}
            case _:
                yield {"from": "human", "value": "\n\n".join(contents)}


def _answer(message: ChatMessage, text: str) -> dict[str, str]:
    """Calls with nothing beside them are a `function_call`. That has no place for words or reasoning: such an answer is
    the model's text as it wrote it."""
    calls = message.get("tool_calls", ())
    if not calls or message["content"] or message.get("reasoning_content"):
        return {"from": "gpt", "value": text}
    asked = [call["function"] for call in calls]
    value: Any = asked[0] if len(asked) == 1 else asked
    return {"from": "function_call", "value": orjson.dumps(value).decode()}


def _tools(tools: Sequence[Mapping[str, Any]] | None) -> str:
    return orjson.dumps([tool["function"] for tool in tools]).decode() if tools else ""
