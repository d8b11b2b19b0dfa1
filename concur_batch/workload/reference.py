"""The reference of workload.yaml, rendered from the schema.

`python -m concur_batch.workload.reference docs/workload.md` puts it into that page, below the marker line.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from concur_batch.workload.explain import wanted
from concur_batch.workload.schema import Section, Workload
from concur_batch.workload.shape import Spot, spot_of

MARKER = "<!-- From here on: python -m concur_batch.workload.reference docs/workload.md -->"


def render_reference() -> str:
    """Markdown: for each block, and each variant of a block, a table of its keys with type, default and meaning."""
    plain = {name: field for name, field in Workload.model_fields.items() if not list(_blocks(name, field))}
    parts = ["## The whole", _table(_rows("", plain))]
    for name, field in Workload.model_fields.items():
        for title, section in _blocks(name, field):
            meaning = inspect.getdoc(section) or ""
            parts += [f"## {title}", meaning, _table(_rows(name, section.model_fields))]
    return "\n\n".join(parts) + "\n"


def write_reference(page: Path) -> None:
    """Replace what stands below the marker. Raises ValueError if the page has no marker."""
    head, marker, _ = page.read_text(encoding="utf-8").partition(MARKER)
    if not marker:
        raise ValueError(f"{page} has no line {MARKER}")
    page.write_text(f"{head}{MARKER}\n\n{render_reference()}", encoding="utf-8")


def _blocks(name: str, field: FieldInfo) -> Iterator[tuple[str, type[Section]]]:
    """A top-level key's block, or each of its variants, with a title."""
    spot = _item(spot_of(field.annotation, field))
    if spot.tagged is not None:
        of = "Each of " if spot.field is None else ""
        default = None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})
        for tag, variant in spot.tagged.variants.items():
            note = ", the default" if isinstance(default, variant) else ""
            yield f"{of}`{name}`, {spot.tagged.key} `{tag}`{note}", variant
    elif (section := spot.section({})) is not None:
        yield f"`{name}`", section


def _item(spot: Spot) -> Spot:
    """The items of a list of blocks, or the spot itself."""
    args: tuple[Any, ...] = getattr(spot.type, "__args__", ())
    if getattr(spot.type, "__origin__", None) is list and spot_of(args[0]).tagged is not None:
        return spot_of(args[0])
    return spot


def _rows(prefix: str, fields: dict[str, FieldInfo]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in fields.items():
        path = f"{prefix}.{name}" if prefix else name
        spot = spot_of(field.annotation, field)
        kind = f"`{spot.choices[0]}`" if len(spot.choices) == 1 else wanted(spot).removeprefix("a ")
        yield f"`{path}`", kind, _default(field), field.description or ""
        section = spot.section({})
        if section is not None:
            yield from _rows(path, section.model_fields)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or isinstance(value, Section):
        return ""
    return f"`{json.dumps(value, default=str)}`"


def _table(rows: Iterator[tuple[str, str, str, str]]) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(cell.replace('|', '&#124;').replace('<', '&lt;') for cell in row)} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
