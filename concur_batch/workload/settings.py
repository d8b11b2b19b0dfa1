"""A workload as flat settings: every key path with its value, defaults included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from concur_batch.workload.schema import Workload


def settings_of(workload: Workload) -> dict[str, Any]:
    """`{"control.policy": "concur", "verify.0.column": "check", ...}`, in the schema's order; values are as in JSON."""
    return dict(_flat("", workload.model_dump(mode="json")))


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    items: list[tuple[str, Any]]
    if isinstance(value, dict) and value:
        items = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = [(str(number), item) for number, item in enumerate(value)]
    else:
        yield path, value
        return
    for key, item in items:
        yield from _flat(f"{path}.{key}" if path else key, item)
