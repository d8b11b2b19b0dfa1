"""Pydantic's validation errors in plain words: located in the file, with the way to mend them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

import annotated_types as at
from pydantic_core import ErrorDetails

from concur_batch.workload.errors import Problem, shown
from concur_batch.workload.schema import Section
from concur_batch.workload.shape import Spot, item_of, spot_at, without_tags
from concur_batch.workload.source import KeyPath, Source

# What a text must look like, for each pattern of the schema; a test holds the two together.
PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]*$": "give letters, digits, `.`, `_` and `-`, starting with a letter or a digit",
    r"^https?://": "give a URL which starts with http:// or https://",
}

_WRONG_KINDS = {
    "int_type",
    "int_from_float",
    "float_type",
    "bool_type",
    "string_type",
    "list_type",
    "tuple_type",
    "dict_type",
    "model_type",
    "model_attributes_type",
    "finite_number",
}


def explain(source: Source, error: ErrorDetails) -> Problem:
    """The problem behind one pydantic error."""
    path = without_tags(source.value, error["loc"])
    spot = spot_at(source.value, path)
    value = error["input"]
    context = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return _unknown_key(source, path)
        case "missing" if path and isinstance(path[-1], int):
            return _wrong_length(source, path[:-1])
        case "missing":
            return source.problem(path, "is missing", f"add it{_meaning(spot)}")
        case "too_short" | "too_long":
            return _wrong_length(source, path)
        case "union_tag_invalid" | "union_tag_not_found" if spot is not None and spot.tagged is not None:
            return _unknown_variant(source, path, spot)
        case "literal_error" if spot is not None:
            return source.problem(path, f"{shown(value)} is not a choice here", one_of(value, spot.choices))
        case "string_pattern_mismatch":
            return source.problem(path, f"{shown(value)} is not allowed here", PATTERNS[context["pattern"]])
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal" if spot is not None:
            return source.problem(path, f"{shown(value)} is {_beyond(error['type'], context)}", f"give {wanted(spot)}")
        case "value_error":
            reason, _, mend = str(context["error"]).partition("; ")
            return source.problem(path, reason, mend)
        case kind if kind in _WRONG_KINDS and spot is not None:
            return _wrong_kind(source, path, spot, value)
        case _:
            return source.problem(path, error["msg"], "see docs/workload.md")


def one_of(given: Any, legal: Iterable[str]) -> str:
    """The mend for a word that is none of the legal ones: the nearest, if one is near, or all of them."""
    legal = list(legal)
    near = difflib.get_close_matches(str(given), legal, 1)
    return f"did you mean `{near[0]}`?" if near else f"give one of {', '.join(legal)}"


def wanted(spot: Spot) -> str:
    """What may stand at a spot, in words: `a whole number, at least 1`, `a share from 0 to 1`."""
    bounds = _bounds(spot)
    if spot.type is float and bounds == {"ge": 0, "le": 1}:
        return "a share from 0 to 1"
    words = {
        "ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}",
    }  # fmt: skip
    limits = " and ".join(words[name].format(bounds[name]) for name in words if name in bounds)
    return f"{_kind(spot)}, {limits}" if limits else _kind(spot)


def _kind(spot: Spot) -> str:
    origin, args = get_origin(spot.type), get_args(spot.type)
    if spot.choices:
        return f"one of {', '.join(spot.choices)}"
    if origin is tuple:
        return f"a list of {len(args)} items"
    if origin is list:
        return "a list"
    if origin is dict or spot.tagged or (isinstance(spot.type, type) and issubclass(spot.type, Section)):
        return "a block of keys"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}.get(
        spot.type, "a value"
    )


def _bounds(spot: Spot) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    for constraint in spot.constraints:
        for name, kind in (("ge", at.Ge), ("gt", at.Gt), ("le", at.Le), ("lt", at.Lt)):
            if isinstance(constraint, kind):
                bounds[name] = getattr(constraint, name)
    return bounds


def _beyond(kind: str, context: dict[str, Any]) -> str:
    bound = next(context[name] for name in ("gt", "ge", "lt", "le") if name in context)
    bound = int(bound) if bound == int(bound) else bound
    match kind:
        case "greater_than":
            return f"not above {bound}"
        case "greater_than_equal":
            return f"below {bound}"
        case "less_than":
            return f"not below {bound}"
        case _:
            return f"above {bound}"


def _wrong_kind(source: Source, path: KeyPath, spot: Spot, value: Any) -> Problem:
    need = wanted(spot)
    if value is None:
        return source.problem(path, "has no value", f"give {need}, or leave the key out")
    if isinstance(value, str):
        mend = f"give {need}, without quotes" if spot.type in (int, float, bool) else f"give {need}"
        return source.problem(path, f"{shown(value)} is a text", mend)
    if isinstance(value, dict | list):
        return source.problem(path, f"is {'a block of keys' if isinstance(value, dict) else 'a list'}", f"give {need}")
    mend = f'give {need}: put it in quotes, "{shown(value)}"' if spot.type in (str, Path) else f"give {need}"
    return source.problem(path, f"{shown(value)} is {'a truth value' if isinstance(value, bool) else 'a number'}", mend)


def _wrong_length(source: Source, path: KeyPath) -> Problem:
    spot = spot_at(source.value, path)
    items = len(_list_at(source, path))
    need = len(get_args(spot.type)) if spot is not None and get_origin(spot.type) is tuple else 0
    return source.problem(path, f"has {items} item{'s' * (items != 1)}", f"give {need or 'at least one'}")


def _list_at(source: Source, path: KeyPath) -> list[Any]:
    value: Any = source.value
    for key in path:
        value = item_of(value, key)
    assert isinstance(value, list)
    return value


def _unknown_key(source: Source, path: KeyPath) -> Problem:
    value: Any = source.value
    for key in path[:-1]:
        value = item_of(value, key)
    spot = spot_at(source.value, path[:-1])
    section = spot.section(value) if spot is not None else None
    assert spot is not None
    assert section is not None
    name = str(path[-1])
    others = spot.tagged.variants.items() if spot.tagged else ()
    owners = [tag for tag, variant in others if name in variant.model_fields]
    if owners and spot.tagged:
        mend = f"it belongs to {spot.tagged.key} {' and '.join(owners)}"
    else:
        near = difflib.get_close_matches(name, section.model_fields, 1)
        mend = f"did you mean `{near[0]}`?" if near else f"the keys here are {', '.join(section.model_fields)}"
    return source.problem(path, "is no key of this block", mend)


def _unknown_variant(source: Source, path: KeyPath, spot: Spot) -> Problem:
    assert spot.tagged is not None
    block: Any = source.value
    for key in path:
        block = item_of(block, key)
    tag_path = (*path, spot.tagged.key)
    if spot.tagged.key not in block:
        return source.problem(tag_path, "is missing", f"add it: one of {', '.join(spot.tagged.variants)}")
    given = block[spot.tagged.key]
    return source.problem(tag_path, f"{shown(given)} is not a choice here", one_of(given, spot.tagged.variants))


def _meaning(spot: Spot | None) -> str:
    description = spot.field.description if spot is not None and spot.field is not None else None
    return f": {description.rstrip('.')}" if description else ""
