"""Tasks: rows whose prompt is rendered, whose workspace files are safe, and whose checks can be run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jinja2

from concur_batch.workload.cells import (
    BadCell,
    read_answer,
    read_check,
    read_files,
    read_group,
    read_id,
    read_match,
    read_priority,
    read_seconds,
)
from concur_batch.workload.errors import InputError, Problem, shown_path
from concur_batch.workload.prompt import PromptTemplate, RenderError
from concur_batch.workload.rows import Row, read_rows
from concur_batch.workload.schema import Tasks, Verify, VerifyAnswer, VerifyCommand
from concur_batch.workload.source import KeyPath, Source


@dataclass(frozen=True, slots=True)
class Task:
    """One task, as every agent (sample) of it gets it.

    `row_number` counts the rows of the file from 1. `files` maps a relative path to its text. `columns` is the whole
    row; the columns of `verify` are parsed and checked: a command is `{"command": text, "files": {path: text}}`, an
    answer a text or a number, and either is None where the check does not apply.
    """

    id: str
    row_number: int
    prompt: str
    files: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    priority: int = 0
    deadline_seconds: float | None = None


def read_tasks(section: Tasks, verify: Sequence[Verify], source: Source) -> list[Task]:
    """Read the task file. `source` locates a wrong template or a wrong column name in the workload file.

    Raises InputError with every bad row, and with a template or a column that fits no row told once.
    """
    reader = _Reader(section, verify, source)
    for row in read_rows(section.file):
        if isinstance(row, Problem):
            reader.problems.append(row)
            continue
        reader.add(row)
        if reader.rows == section.limit:
            break
    return reader.finish()


class _Reader:
    """Collects tasks and problems, row by row."""

    def __init__(self, section: Tasks, verify: Sequence[Verify], source: Source) -> None:
        self.section = section
        self.verify = verify
        self.source = source
        self.template = compile_prompt(section, source)
        self.rows = 0
        self.tasks: list[Task] = []
        self.problems: list[Problem] = []
        self.columns: dict[str, None] = {}  # in order of appearance
        self.nameless: list[Row] = []
        self.unrendered: dict[str, list[Row]] = {}  # by what is wrong
        self.place_of: dict[str, str] = {}  # by task id

    def add(self, row: Row) -> None:
        self.rows += 1
        self.columns.update(dict.fromkeys(row.columns))
        task_id = self._id(row)
        prompt = self._prompt(row)
        files: dict[str, str] = {}
        checked: dict[str, Any] = {}
        if self.section.files is not None:
            files = self._cell(row, self.section.files, read_files) or {}
        for check in self.verify:
            checked[check.column] = self._cell(row, check.column, partial(_check, check, row))
        section = self.section
        group = self._cell(row, section.group, read_group) if section.group is not None else None
        priority = self._cell(row, section.priority, read_priority) if section.priority is not None else None
        deadline = self._cell(row, section.deadline, read_seconds) if section.deadline is not None else None
        columns = {**row.columns, **checked} if checked else row.columns
        self.tasks.append(Task(task_id, row.number, prompt, files, columns, group or "", priority or 0, deadline))

    def finish(self) -> list[Task]:
        for reason, rows in self.unrendered.items():
            if len(rows) == self.rows:
                self.problems.append(self.source.problem(("tasks", "prompt"), reason, _listed(self.columns)))
            else:
                self.problems.extend(self._problem(row, "", reason, _listed(row.columns)) for row in rows)
        if self.section.id in self.columns:
            mend = "give it one, as the other rows have"
            self.problems.extend(
                self._problem(row, self.section.id, "the row has no id", mend) for row in self.nameless
            )
        if self.rows:
            self.problems.extend(self._missing_columns())
        elif not self.problems:
            self.problems.append(
                Problem(shown_path(self.section.file), None, "", "the file has no rows", "write one task a row")
            )
        if self.problems:
            raise InputError(self.problems)
        return self.tasks

    def _id(self, row: Row) -> str:
        if self.section.id not in row.columns:
            self.nameless.append(row)
            return str(row.number)
        task_id = self._cell(row, self.section.id, read_id)
        if task_id is None:
            return str(row.number)
        place = f"row {row.number}" if row.line is None else f"line {row.line}"
        first = self.place_of.setdefault(task_id, place)
        if first != place:
            reason = f"the id {task_id} stands already in {first}"
            self.problems.append(self._problem(row, self.section.id, reason, "give every task an id of its own"))
        return str(task_id)

    def _prompt(self, row: Row) -> str:
        try:
            prompt = self.template.render(row.columns)
        except RenderError as error:
            self.unrendered.setdefault(str(error), []).append(row)
            return ""
        if not prompt.strip():
            self.problems.append(
                self._problem(row, "", "the prompt is empty", "fill the columns which the template uses")
            )
        return prompt

    def _cell(self, row: Row, column: str, read: Callable[[Any], Any]) -> Any:
        """What `read` makes of a cell (null where the row has none), or None and a problem."""
        try:
            return read(row.columns.get(column))
        except BadCell as error:
            self.problems.append(self._problem(row, column, error.reason, error.mend))
            return None

    def _problem(self, row: Row, column: str, reason: str, mend: str) -> Problem:
        key = column if row.line is not None else ", ".join(part for part in (f"row {row.number}", column) if part)
        return Problem(shown_path(self.section.file), row.line, key, reason, mend)

    def _missing_columns(self) -> Iterator[Problem]:
        """The workload's columns that no row has. A default `id` may be missing: the row's number stands in."""
        named: list[tuple[KeyPath, str]] = []
        if "id" in self.section.model_fields_set:
            named.append((("tasks", "id"), self.section.id))
        for key in ("files", "group", "priority", "deadline"):
            if (column := getattr(self.section, key)) is not None:
                named.append((("tasks", key), column))
        for number, check in enumerate(self.verify):
            named.append((("verify", number, "column"), check.column))
            if isinstance(check, VerifyAnswer) and check.match_column is not None:
                named.append((("verify", number, "match_column"), check.match_column))
        for path, column in named:
            if column not in self.columns:
                near = difflib.get_close_matches(column, self.columns, 1)
                mend = f"did you mean `{near[0]}`?" if near else _listed(self.columns)
                yield self.source.problem(path, f"{self.section.file.name} has no column `{column}`", mend)


def compile_prompt(section: Tasks, source: Source) -> PromptTemplate:
    """The compiled template. Raises InputError if it is none."""
    try:
        return PromptTemplate.compile(section.prompt)
    except jinja2.TemplateSyntaxError as error:
        reason = f"line {error.lineno} of the template: {error.message}"
        raise InputError(
            [source.problem(("tasks", "prompt"), reason, "mend it; a brace as such is written {{ '{' }}")]
        ) from None


def _check(check: Verify, row: Row, cell: Any) -> Any:
    if isinstance(check, VerifyCommand):
        return read_check(cell)
    match = check.match if check.match_column is None else read_match(row.columns.get(check.match_column), check.match)
    return read_answer(cell, match)


def _listed(columns: Iterable[str]) -> str:
    return f"the columns are {', '.join(columns)}"
