"""Cells of a task's row that have a meaning: its id, its files, the checks of its result."""

from __future__ import annotations

import math
from typing import Any, get_args

import orjson

from concur_batch.workload.errors import shown
from concur_batch.workload.explain import one_of
from concur_batch.workload.schema import AnswerMatch
from tools_env.verify import verify_answer

MAX_ID_CHARACTERS = 200
MAX_NAME_BYTES = 255  # of one part of a path, on every usual file system

_EXPECTED = {
    "number": ("not one number", "give a number, or compare it with `match: exact`"),
    "regex": ("no regular expression", "mend it, or compare it with `match: exact`"),
}


class BadCell(Exception):
    """A cell that cannot be used: `reason`, and how to mend it."""

    def __init__(self, reason: str, mend: str) -> None:
        super().__init__(f"{reason}; {mend}")
        self.reason = reason
        self.mend = mend


def read_id(cell: Any) -> str:
    """A task's id: a text or a whole number. It may hold any printable text; no path is made of it."""
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise BadCell(f"{shown(cell)} is no id", "give a text or a whole number")
    name = str(cell)
    if not name.strip():
        raise BadCell("is empty", "give every task an id, or drop the column to count the rows")
    if len(name) > MAX_ID_CHARACTERS:
        raise BadCell(f"has {len(name)} characters", f"give at most {MAX_ID_CHARACTERS}")
    if not name.isprintable():
        raise BadCell(f"{shown(name)} holds a control character", "delete it")
    return name


def read_group(cell: Any) -> str:
    """The name of a task's group; empty for none."""
    return "" if cell is None or cell == "" else read_id(cell)


def read_priority(cell: Any) -> int:
    """A whole number, or its text as CSV has it; 0 for none."""
    if cell is None or cell == "":
        return 0
    try:
        if isinstance(cell, bool) or not isinstance(cell, str | int):
            raise ValueError
        priority = int(cell)
    except ValueError:
        raise BadCell(f"{shown(cell)} is no whole number", "give one, higher for tasks to be admitted first") from None
    if not -(2**63) <= priority < 2**63:
        raise BadCell(f"{shown(cell)} is beyond 64 bits", "give a smaller one")
    return priority


def read_seconds(cell: Any) -> float | None:
    """A number of seconds above 0, or its text as CSV has it; None for none."""
    if cell is None or cell == "":
        return None
    try:
        seconds = math.nan if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise BadCell(f"{shown(cell)} is no number of seconds above 0", "give one, from the run's start")
    return seconds


def read_files(cell: Any) -> dict[str, str]:
    """Files by their path in the workspace: an object, the JSON text of one, or nothing."""
    cell = _parsed(cell, "an object from path to text")
    if cell is None:
        return {}
    if not isinstance(cell, dict):
        raise BadCell(f"{shown(cell)} is not an object", "give an object from path to text")
    for path, text in cell.items():
        _check_path(path)
        if not isinstance(text, str):
            raise BadCell(f"the file {shown(path)} is {shown(text)}, not a text", "give its text in quotes")
    for path in cell:
        parts = path.split("/")
        above = next(("/".join(parts[:n]) for n in range(1, len(parts)) if "/".join(parts[:n]) in cell), None)
        if above is not None:
            raise BadCell(f"{shown(above)} is a file and the directory of {shown(path)}", "rename one of them")
    return cell


def _check_path(path: str) -> None:
    mend = "give a path under the workspace, as src/main.py"
    if not path.isprintable():
        raise BadCell(f"the path {shown(path)} holds a control character", mend)
    if path.startswith("/"):
        raise BadCell(f"the path {shown(path)} is absolute", mend)
    parts = path.split("/")
    if ".." in parts:
        raise BadCell(f"the path {shown(path)} leads out of the workspace", mend)
    if "" in parts or "." in parts:
        raise BadCell(f"the path {shown(path)} has an empty part", mend)
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise BadCell(f"the path {shown(path)} has a part above {MAX_NAME_BYTES} bytes", "shorten it")


def read_check(cell: Any) -> dict[str, Any] | None:
    """A check by command, as `{"command": text, "files": {path: text}}`; None where there is no command to run."""
    mend = 'give {"command": ..., "files": {...}}, or null'
    cell = _parsed(cell, "an object with `command`")
    if cell is None:
        return None
    if not isinstance(cell, dict):
        raise BadCell(f"{shown(cell)} is not an object", mend)
    unknown = next((key for key in cell if key not in ("command", "files")), None)
    if unknown is not None:
        raise BadCell(f"has the unknown key {shown(unknown)}", mend)
    command = cell.get("command")
    if command is None:
        return None
    if not isinstance(command, str) or not command.strip():
        raise BadCell(f"the command is {shown(command)}", mend)
    return {"command": command, "files": read_files(cell.get("files"))}


def read_match(cell: Any, default: AnswerMatch) -> AnswerMatch:
    """How a task's answer is compared; an empty cell leaves it to the workload."""
    if cell is None or cell == "":
        return default
    for match in get_args(AnswerMatch):
        if cell == match:
            return match  # type: ignore[no-any-return]
    raise BadCell(f"{shown(cell)} is no way to compare answers", one_of(cell, get_args(AnswerMatch)))


def read_answer(cell: Any, match: AnswerMatch) -> str | int | float | None:
    """The answer to compare with; None where there is none (null, or an empty cell)."""
    if cell is None or cell == "":
        return None
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        raise BadCell(f"{shown(cell)} is no answer", "give a text, a number, or null")
    try:
        verify_answer(None, str(cell), match)
    except ValueError:
        what, mend = _EXPECTED[match]
        raise BadCell(f"{shown(cell)} is {what}", mend) from None
    return cell


def _parsed(cell: Any, what: str) -> Any:
    """A cell of a CSV or Parquet file holds JSON as text."""
    if not isinstance(cell, str):
        return cell
    if not cell.strip():
        return None
    try:
        return orjson.loads(cell)
    except orjson.JSONDecodeError as error:
        raise BadCell(f"{shown(cell)} is not JSON: {error.msg[:1].lower()}{error.msg[1:]}", f"give {what}") from None
