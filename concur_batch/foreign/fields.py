"""Values out of JSON that anybody may have written: of the type that is wanted, or as good as absent. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from concur_batch.agent.template import Tools
from concur_batch.foreign.trajectory import Unfit

_LARGEST_ID = 2**31 - 1  # ids are kept as int32


def mapping(value: Any) -> Mapping[str, Any]:
    """The object, or an empty one."""
    return value if isinstance(value, dict) else {}


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def string(value: Any) -> str:
    """The text, or an empty one."""
    return value if isinstance(value, str) else ""


def text_of(content: Any) -> str:
    """The text of a message's content: a text, nothing, or a list of parts. Raises Unfit where a part is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(map(_text_of_part, content))
    raise Unfit("a message's content is neither a text nor a list of parts")


def _text_of_part(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = mapping(part).get("text")
    if isinstance(text, str):
        return text
    if "image" in string(mapping(part).get("type")):
        raise Unfit("it shows images, and a replay sends texts")
    raise Unfit("a part of a message's content is no text")


def json_of(value: Any) -> str:
    """A call's arguments as JSON: they stand in files as an object, or as the text that the model wrote.
    Raises Unfit."""
    if isinstance(value, str):
        return value
    try:
        return "{}" if value is None else orjson.dumps(value).decode()
    except TypeError:
        raise Unfit("a call's arguments are nested too deeply") from None


def number(value: Any) -> float | None:
    """A finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def small_int(value: Any) -> int | None:
    """A whole number of 32 bits."""
    return value if type(value) is int and -_LARGEST_ID <= value <= _LARGEST_ID else None


def ids_of(value: Any) -> tuple[int, ...] | None:
    """Token ids, if it is a list of such and not empty."""
    if not isinstance(value, list) or not value:
        return None
    sound = all(type(item) is int and 0 <= item <= _LARGEST_ID for item in value)
    return tuple(value) if sound else None


def tools_of(value: Any) -> Tools | None:
    """OpenAI function schemas, which some files hold as a text of JSON; those that are none are left out."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    sound = [tool for tool in mappings(value) if isinstance(mapping(tool.get("function")).get("name"), str)]
    return sound or None


def name_of(*values: Any) -> str:
    """The first of these that names something, on one line."""
    for value in values:
        name = " ".join(str(value).split()) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
        if name:
            return name
    return ""
