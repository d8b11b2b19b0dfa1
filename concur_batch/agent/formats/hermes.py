"""Actions as <tool_call> blocks of JSON."""

from __future__ import annotations

import re
from typing import Any

import orjson

from concur_batch.agent.formats.action import (
    UNCLOSED_THINKING,
    Action,
    ActionError,
    Answer,
    Call,
    Calls,
    Malformed,
    Specs,
    Truncated,
    read_call,
    read_json,
)

_TAG = re.compile("<tool_call>|</tool_call>|<think>|</think>|<tool_response>")
_SPACE = re.compile(r"\s*")
_CLOSE = "</tool_call>"
_FORM = '<tool_call>\n{"name": "<tool>", "arguments": {...}}\n</tool_call>'


def parse_hermes(text: str, complete: bool, specs: Specs) -> Action:
    """See `actions`. `complete`: the model ended the turn itself."""
    calls: dict[bytes, Call] = {}  # by what they ask for
    thought = ""
    said: list[str] = []  # text outside of blocks and reasoning
    position = 0
    try:
        while (tag := _TAG.search(text, position)) is not None:
            said.append(text[position : tag.start()])
            position = tag.end()
            if tag[0] == "<think>":
                end = text.find("</think>", position)
                if end < 0:
                    return UNCLOSED_THINKING if complete else Truncated()
                position = end + len("</think>")
            elif tag[0] == "</think>":
                calls, said = {}, []  # opened nowhere: whatever came before was reasoning
            elif tag[0] == "<tool_response>":
                complete = complete or bool(calls)
                position = len(text)
            elif tag[0] == _CLOSE:
                raise ActionError(f"{_CLOSE} without <tool_call> before it")
            else:
                call, position = _read_block(text, position, specs)
                thought = thought if calls else "".join(said).strip()
                calls.setdefault(orjson.dumps((call.name, call.arguments), option=orjson.OPT_SORT_KEYS), call)
    except ActionError as error:
        # One is enough, since the turn is refused as a whole. (It bounds the time, too: an error counts lines.)
        return Malformed(f"{error}. The form is:\n{_FORM}") if complete else Truncated()
    said.append(text[position:])
    if not complete:
        return Truncated()
    words = "".join(said).strip()
    if calls:
        return Calls(tuple(calls.values()), thought)
    if not words:
        return Malformed(f"the reply is empty: call a tool, or write the final answer. The form of a call is:\n{_FORM}")
    if _looks_like_call(words):
        return Malformed(f"a call must stand in <tool_call> tags. The form is:\n{_FORM}")
    return Answer(words)


def before_calls(text: str) -> str:
    """What a turn that `parse_hermes` took as calls has before the first of them, with its reasoning."""
    first: int | None = None
    position = 0
    while (tag := _TAG.search(text, position)) is not None and tag[0] != "<tool_response>":
        position = tag.end()
        if tag[0] == "<think>":
            position = text.index("</think>", position) + len("</think>")
        elif tag[0] == "</think>":
            first = None  # whatever came before was reasoning
        elif tag[0] == "<tool_call>":
            first = tag.start() if first is None else first
            _, position = read_json(text, _after_space(text, position))
    return text[:first]


def _read_block(text: str, position: int, specs: Specs) -> tuple[Call, int]:
    """The call of a block from after its opening tag, and where the block ends. Raises ActionError."""
    value, end = read_json(text, _after_space(text, position))
    after = _after_space(text, end)
    if text.startswith(_CLOSE, after):
        end = after + len(_CLOSE)
    elif after < len(text):
        # The end of the turn closes the block as well; anything else is no end.
        near = text[after : after + 20]
        raise ActionError(f"{_CLOSE} must follow the JSON object, not {near!r}")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ActionError('a <tool_call> must hold one JSON object with "name" and "arguments"')
    return read_call(value["name"], _arguments(value, specs), specs), end


def _arguments(value: dict[str, Any], specs: Specs) -> Any:
    """The arguments under either name that models give them; none at all only for a tool that needs none."""
    for key in ("arguments", "parameters"):
        if key in value:
            return value[key]
    spec = specs.get(value["name"])
    if len(value) == 1 and spec is not None and not spec.parameters.get("required"):
        return {}
    raise ActionError('a <tool_call> must hold "arguments", a JSON object, beside "name"')


def _looks_like_call(words: str) -> bool:
    """Whether all that was said is a call that lacks its tags."""
    if not words.startswith("{"):
        return False
    try:
        value, _ = read_json(words, 0)
    except ActionError:
        return False
    return isinstance(value, dict) and "name" in value and ("arguments" in value or "parameters" in value)


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
