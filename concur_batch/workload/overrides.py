"""`--set key.path=value`: one value of the workload given on the command line.

The value is YAML (`--set agent.limits.turns=8`, `--set 'engine.launch.args=[--tp, "2"]'`, an empty one is null). Blocks
on the way are made where they are missing, `verify.0.column` reaches into a list. Another `kind` or `policy` drops the
keys which only other variants have and keeps the rest, so that `--set control.policy=none` is enough.
"""

from __future__ import annotations

from typing import Any

from concur_batch.workload.errors import InputError, Problem
from concur_batch.workload.shape import spot_at
from concur_batch.workload.source import KeyPath, Origin, Source, dotted, read_yaml_value


def apply_override(source: Source, override: str) -> None:
    """Put one override into the source. Raises InputError if it is no `key=value` or leads nowhere."""
    file = f"--set {override}"
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(
            [Problem(file, None, "", "is not of the form key.path=value", "write --set control.policy=none")]
        )
    value = read_yaml_value(text, file)
    holder: Any = source.value
    path: KeyPath = ()
    for part in parts[:-1]:
        step = _step(holder, path, part, file)
        path = (*path, step)
        if isinstance(holder, dict) and holder.get(step) is None:
            holder[step] = {}
            source.origins[path] = Origin(file, None)
        holder = holder[step]
    last = _step(holder, path, parts[-1], file)
    holder[last] = value
    path = (*path, last)
    source.forget(path)
    source.origins[path] = Origin(file, None)
    _drop_foreign_keys(source, path, holder)


def _step(holder: Any, path: KeyPath, part: str, file: str) -> str | int:
    """The part of a key path as the key of a block or the number of a list's item."""
    if isinstance(holder, dict):
        return part
    if not isinstance(holder, list):
        raise InputError(
            [Problem(file, None, dotted(path), "is a single value, not a block of keys", "set it as a whole")]
        )
    if not part.isdecimal() or len(part) > 9 or int(part) >= len(holder):
        mend = f"give an item from 0 to {len(holder) - 1}" if holder else "set the list as a whole"
        raise InputError([Problem(file, None, dotted(path), f"the list has no item {part}", mend)])
    return int(part)


def _drop_foreign_keys(source: Source, path: KeyPath, block: Any) -> None:
    """After a tag was set: drop what only other variants know."""
    spot = spot_at(source.value, path[:-1])
    if spot is None or spot.tagged is None or spot.tagged.key != path[-1]:
        return
    section = spot.section(block)
    if section is None:
        return
    known = {key for variant in spot.tagged.variants.values() for key in variant.model_fields}
    for key in [key for key in block if key in known and key not in section.model_fields]:
        del block[key]
        source.forget((*path[:-1], key))
