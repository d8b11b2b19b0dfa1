"""The paths of a workload: made absolute, and checked for what must stand there before a run."""

from __future__ import annotations

import difflib
import os
from collections.abc import Container
from pathlib import Path
from typing import Any

from concur_batch.trace.manifest import MANIFEST
from concur_batch.workload.errors import Problem, shown, shown_path
from concur_batch.workload.schema import Workload
from concur_batch.workload.shape import leaves
from concur_batch.workload.source import KeyPath, Source

TASK_SUFFIXES = (".jsonl", ".parquet", ".csv")

# What `make sglang-cpu` makes, by the name of a directory on the way to it.
_MADE = {
    "smollm2-135m": "run `make sglang-cpu`",
    ".venv-sglang": "run `make sglang-cpu`",
    ".venv-vllm": "run `make vllm-cpu`",
}


def make_absolute(source: Source, base_dir: Path) -> None:
    """Replace every path: relative ones start at `base_dir`, `output` at the current directory; `~` is home."""
    source.value.setdefault("output", str(Workload.model_fields["output"].default))
    for path, spot, value in list(leaves(source.value)):
        if spot.type is Path and isinstance(value, str) and value:
            start = Path.cwd() if path == ("output",) else base_dir
            _put(source.value, path, os.path.normpath(start / os.path.expanduser(value)))  # noqa: PTH111 - never raises


def missing_places(source: Source, needed: Container[str] | None = None) -> list[Problem]:
    """A problem for each file, directory or environment variable that must exist and does not; of the `needed` blocks,
    or of all."""
    problems = []
    for path, _, value in leaves(source.value):
        if isinstance(value, str) and (needed is None or path[0] in needed):
            try:
                found = _missing(path, value)
            except OSError as error:  # a name too long, a directory that may not be read
                found = f"{shown(value)} cannot be used: {(error.strerror or str(error)).lower()}", "mend the path"
            if found is not None:
                problems.append(source.problem(path, *found))
    return problems


def _missing(path: KeyPath, value: str) -> tuple[str, str] | None:
    """Reason and mend, if what the key at `path` names is not there."""
    place = Path(value)
    match path:
        case ("tasks", "file"):
            if place.suffix.lower() not in TASK_SUFFIXES:
                return f"{place.name} is no kind of task file", f"give a file which ends in {', '.join(TASK_SUFFIXES)}"
            return _missing_file(place)
        case ("agent", "system_file") | ("engine", "script") | ("replay", "file"):
            return _missing_file(place)
        case ("replay", "run"):
            if not (place / MANIFEST).is_file():
                return f"{shown_path(place)} is no run's directory", "give one that `concur run` has made"
        case ("model", "tokenizer"):
            if not place.is_dir():
                return _absent(place, "directory")
            if not (place / "tokenizer.json").is_file():
                return (
                    f"{shown_path(place)} has no tokenizer.json",
                    "give a directory as on the Hugging Face hub, with tokenizer.json in it",
                )
        case ("engine", "launch", "model"):
            if not place.is_dir():
                return _absent(place, "directory")
        case ("engine", "launch", "python"):
            if not place.is_file():
                return _absent(place, "file")
            if not os.access(place, os.X_OK):
                return (
                    f"{shown_path(place)} cannot be executed",
                    "give the interpreter of the engine's environment, as .venv/bin/python",
                )
        case ("engine", "api_key"):
            if not os.environ.get(value):
                return f"the environment variable {value} is not set", f"export {value}, or leave the key out"
    return None


def _missing_file(place: Path) -> tuple[str, str] | None:
    if not place.is_file():
        return _absent(place, "file")
    if not os.access(place, os.R_OK):
        return f"{shown_path(place)} cannot be read", "allow it with chmod u+r"
    return None


def _absent(place: Path, kind: str) -> tuple[str, str]:
    if place.exists():
        return f"{shown_path(place)} is not a {kind}", f"give a {kind}"
    reason = f"there is no {kind} {shown_path(place)}"
    for part in place.parts:
        if part in _MADE:
            return reason, _MADE[part]
    parent = next((up for up in place.parents if up.is_dir()), None)
    if parent is not None and os.access(parent, os.R_OK):
        missing = place.relative_to(parent).parts[0]
        near = difflib.get_close_matches(missing, sorted(entry.name for entry in parent.iterdir()), 1, 0.8)
        if near:
            return reason, f"did you mean {shown_path(parent / near[0])}?"
    return reason, "make it, or mend the path: it is relative to the workload file"


def _put(document: Any, path: KeyPath, value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value
