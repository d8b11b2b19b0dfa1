"""The kinds of action, and what the formats share in reading one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import orjson

from tools_env.spec import ToolSpec

Specs = Mapping[str, ToolSpec]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool that exists. `arguments` can be written as JSON; the tool itself says if it takes them."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Calls:
    """At least one call, to be run in this order. `thought` is the text before the first."""

    calls: tuple[Call, ...]
    thought: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The agent is done, and this is its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """No action could be made out; `reason` tells the model how to mend it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """The turn was cut before its action was surely complete; nothing of it may be executed."""


Action = Calls | Answer | Malformed | Truncated


class ActionError(ValueError):
    """An action that cannot be read; the message tells the model how to mend it."""


def _no_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


# Line breaks within strings are let through: models write them, and they mean what they look like.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def read_json(text: str, position: int) -> tuple[Any, int]:
    """The JSON value that begins at `position`, and where it ends. Raises ActionError."""
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20]
        raise ActionError(
            f"the JSON does not parse: {error.msg} at {near!r}. Use double quotes around every name and string, "
            "no trailing commas, no comments"
        ) from error
    except RecursionError as error:
        raise ActionError("the JSON is nested too deeply") from error
    except ValueError as error:  # NaN, or an integer of thousands of digits
        raise ActionError(f"the JSON does not parse: {error}") from error


def read_call(name: str, arguments: Any, specs: Specs) -> Call:
    """A call of a tool that exists, its arguments an object or the JSON text of one. Raises ActionError."""
    if name not in specs:
        raise ActionError(f"there is no tool {name!r:.80}; the tools are: {', '.join(specs)}")
    if isinstance(arguments, str):
        arguments = _whole_json(arguments.strip()) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ActionError(f"the arguments of {name} must be one JSON object, such as {example(specs[name])}")
    try:
        orjson.dumps(arguments)
    except TypeError as error:
        raise ActionError(f"the arguments of {name} cannot be used: {error}") from error
    return Call(name, arguments)


def _whole_json(text: str) -> Any:
    value, end = read_json(text, 0)
    if end < len(text):
        raise ActionError(f"nothing may follow the JSON object of the arguments, but there is {text[end : end + 20]!r}")
    return value


def example(spec: ToolSpec) -> str:
    """An object with the tool's required arguments, to show what is asked for."""
    return json.dumps(dict.fromkeys(spec.parameters.get("required", []), "..."))


def without_thinking(text: str, action: re.Pattern[str]) -> str | None:
    """The text without <think>...</think> before its first `action`; None if a <think> there is not closed."""
    kept = []
    position = 0
    first = action.search(text)
    while (start := text.find("<think>", position)) >= 0:
        if first is not None and first.start() < position:  # that one was within reasoning
            first = action.search(text, position)
        if first is not None and first.start() < start:
            break
        kept.append(text[position:start])
        end = text.find("</think>", start)
        if end < 0:
            return None
        position = end + len("</think>")
    return "".join([*kept, text[position:]])


UNCLOSED_THINKING = Malformed("your reasoning was not closed: write </think>, then act")
