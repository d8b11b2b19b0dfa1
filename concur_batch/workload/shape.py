"""Walks the schema along a key path: which block, which variant, which type stands there."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from concur_batch.workload.schema import Section, Workload
from concur_batch.workload.source import KeyPath


@dataclass(frozen=True, slots=True)
class Tagged:
    """A block of one of several variants, told apart by the value of `key` (`kind` or `policy`)."""

    key: str
    variants: Mapping[str, type[Section]]


@dataclass(frozen=True, slots=True)
class Spot:
    """What the schema has at a key path: the bare type (no None, no `Annotated`), its constraints, its field if any."""

    type: Any
    constraints: tuple[Any, ...]
    optional: bool
    field: FieldInfo | None = None

    @property
    def tagged(self) -> Tagged | None:
        """The variants, if this is a block that has some. The tag is the field that leaves no choice."""
        members = get_args(self.type) if _is_union(self.type) else ()
        if not members or not all(_is_section(member) for member in members):
            return None
        key = next(name for name, field in members[0].model_fields.items() if _is_tag(field))
        return Tagged(key, {get_args(member.model_fields[key].annotation)[0]: member for member in members})

    def section(self, value: Any) -> type[Section] | None:
        """The block's class, where the raw value chooses the variant; None if it is no block or its tag is unknown."""
        if _is_section(self.type):
            chosen: type[Section] = self.type
            return chosen
        tagged = self.tagged
        tag = value.get(tagged.key) if tagged and isinstance(value, dict) else None
        return tagged.variants.get(tag) if tagged and isinstance(tag, str) else None

    @property
    def choices(self) -> tuple[str, ...]:
        """The legal words, where only some are."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()


ROOT = Spot(Workload, (), False)


def spot_of(annotation: Any, field: FieldInfo | None = None) -> Spot:
    """The spot of a type, with None, `Annotated` and nested constraints unwrapped."""
    constraints = list(field.metadata) if field else []
    optional = False
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            for item in more:
                constraints.extend(item.metadata if isinstance(item, FieldInfo) else [item])
        elif _is_union(annotation) and type(None) in get_args(annotation):
            rest = tuple(member for member in get_args(annotation) if member is not type(None))
            annotation, optional = Union[rest], True  # noqa: UP007 - built at run time
        else:
            return Spot(annotation, tuple(constraints), optional, field)


def child(spot: Spot, value: Any, key: str | int) -> Spot | None:
    """The spot under `spot`, whose raw value is `value`, at `key`; None if the schema has none."""
    section = spot.section(value)
    if section is not None:
        field = section.model_fields.get(str(key))
        return None if field is None else spot_of(field.annotation, field)
    origin, args = get_origin(spot.type), get_args(spot.type)
    if origin is list:
        return spot_of(args[0])
    if origin is tuple and isinstance(key, int) and key < len(args):
        return spot_of(args[key])
    if origin is dict:
        return spot_of(args[1])
    return None


def spot_at(document: Any, path: KeyPath) -> Spot | None:
    """The spot at `path` of the raw document, whose tags choose the variants on the way."""
    spot: Spot | None = ROOT
    value = document
    for key in path:
        if spot is None:
            return None
        spot = child(spot, value, key)
        value = item_of(value, key)
    return spot


def without_tags(document: Any, location: tuple[str | int, ...]) -> KeyPath:
    """A pydantic error location as the key path of the document: pydantic puts the variant's tag after its block."""
    path: list[str | int] = []
    spot: Spot | None = ROOT
    value = document
    rest = list(location)
    while rest:
        if spot is not None and spot.tagged is not None and rest[0] in spot.tagged.variants:
            rest.pop(0)
            if not rest:
                break
        key = rest.pop(0)
        spot = child(spot, value, key) if spot is not None else None
        value = item_of(value, key)
        path.append(key)
    return tuple(path)


def leaves(document: Any, spot: Spot = ROOT, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Spot, Any]]:
    """Every value of the document that the schema knows and that is no block: its path, spot and raw value."""
    section = spot.section(document)
    origin = get_origin(spot.type)
    keys: Iterator[str | int]
    if section is not None and isinstance(document, dict):
        keys = iter(document)
    elif origin is list and isinstance(document, list) and spot_of(get_args(spot.type)[0]).tagged is not None:
        keys = iter(range(len(document)))
    else:
        yield path, spot, document
        return
    for key in keys:
        under = child(spot, document, key)
        if under is not None:
            yield from leaves(item_of(document, key), under, (*path, key))


def item_of(value: Any, key: str | int) -> Any:
    """`value[key]` of a dict or list, None where there is none."""
    if isinstance(value, dict):
        return value.get(key)
    if isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value):
        return value[key]
    return None


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def _is_tag(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)
