"""Bad input: what is wrong, where, and how to mend it, as one line a problem."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHOWN_PROBLEMS = 20
SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of the input.

    `file` is the file as the user named it, or the `--set` argument which brought the value in; `line` counts from 1
    and is None where lines mean nothing (Parquet, `--set`); `key` is the key path (`control.u_high`), the column or the
    row, and may be empty.
    """

    file: str
    line: int | None
    key: str
    reason: str
    mend: str

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [place, self.key, f"{self.reason}; {self.mend}"]
        return _one_line(": ".join(part for part in parts if part))


class InputError(Exception):
    """Everything that is wrong with the input, all at once. Its text has one line a problem, the first 20 of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:SHOWN_PROBLEMS]]
        rest = len(self.problems) - len(lines)
        return "\n".join([*lines, f"and {rest} more"] if rest else lines)


def shown(value: Any) -> str:
    """A value as it may stand in a message: JSON, on one line, the middle of a long one left out."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[: SHOWN_CHARACTERS - 20]} … {text[-15:]}"
    return _one_line(text)


def shown_path(path: Path) -> str:
    """A path as it may stand in a message: from the current directory, where it lies under it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
