"""How the simulated model writes an action, in each of the formats that agents read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concur_batch.simulator.conversation import ActionFormat


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call."""

    name: str
    arguments: Mapping[str, Any]


def write_turn(form: ActionFormat, think: str, calls: Sequence[Call]) -> str:
    """An assistant turn. Raises ValueError where the format cannot say it.

    In the bash format a `bash` call is a bash block; `submit` is a block of its own kind with the answer.
    """
    if form == "hermes":
        blocks = [
            f"<tool_call>\n{_json({'name': call.name, 'arguments': dict(call.arguments)})}\n</tool_call>"
            for call in calls
        ]
        return "\n".join([think, *blocks] if think else blocks)
    if len(calls) != 1:
        raise ValueError(f"the {form} format takes one call a turn, not {len(calls)}")
    call = calls[0]
    if form == "react":
        return f"Thought: {think}\nAction: {call.name}\nAction Input: {_json(dict(call.arguments))}"
    if call.name == "bash":
        return f"{think}\n```bash\n{call.arguments['command']}\n```"
    if call.name == "submit":
        return f"{think}\n```submit\n{call.arguments['answer']}\n```"
    raise ValueError(f"the bash format has no tool {call.name!r}")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
