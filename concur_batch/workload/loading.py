"""From workload.yaml and `--set` arguments to a valid workload and its tasks, or to every problem at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from concur_batch.workload.consistency import contradictions
from concur_batch.workload.errors import InputError, Problem, shown_path
from concur_batch.workload.explain import explain
from concur_batch.workload.overrides import apply_override
from concur_batch.workload.places import make_absolute, missing_places
from concur_batch.workload.schema import Tasks, Verify, Workload
from concur_batch.workload.shape import spot_of
from concur_batch.workload.source import Source, read_yaml
from concur_batch.workload.tasks import Task, compile_prompt, read_tasks

_VERIFY: TypeAdapter[list[Verify]] = TypeAdapter(list[Verify])


@dataclass(frozen=True, slots=True)
class Loaded:
    """A workload with absolute paths to files which exist.

    `base_dir` is where its relative paths start, `system` the system prompt wherever it came from, and `source` knows
    where each value was written.
    """

    workload: Workload
    path: Path
    base_dir: Path
    system: str
    source: Source


def load(path: Path | str, overrides: Sequence[str] = ()) -> Loaded:
    """Read a workload file, with the overrides applied in their order.

    Raises InputError with everything that is wrong: YAML, unknown keys, wrong values, missing files. If anything is,
    the tasks are read as well, as far as they can be, so that their problems are told at once too.
    """
    source, base_dir = _read(Path(path))
    problems = _apply(source, overrides)
    _fill_default_tags(source)
    make_absolute(source, base_dir)
    workload: Workload | None = None
    try:
        workload = Workload.model_validate_json(json.dumps(source.value), strict=True)
        problems += contradictions(workload, source)
    except ValidationError as error:
        problems += [explain(source, detail) for detail in error.errors(include_url=False)]
    problems += missing_places(source)
    system, system_problems = _system_prompt(source)
    problems += system_problems
    if workload is None or problems:
        raise InputError(_in_order(source.file, [*problems, *_task_problems(source, problems)]))
    return Loaded(workload, Path(path), base_dir, system, source)


def load_tasks(loaded: Loaded) -> list[Task]:
    """The workload's tasks, in the order of their file. Raises InputError with every bad row."""
    return read_tasks(loaded.workload.tasks, loaded.workload.verify, loaded.source)


def _read(path: Path) -> tuple[Source, Path]:
    """The file's source and the directory at which its relative paths start."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError([Problem(str(path), line, "", "is not UTF-8", "save the file as UTF-8")]) from None
    except FileNotFoundError:
        raise InputError(
            [Problem(str(path), None, "", "there is no such file", "give the path of a workload file")]
        ) from None
    except OSError as error:
        reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise InputError([Problem(str(path), None, "", reason, "give the path of a workload file")]) from None
    return read_yaml(text, str(path)), path.resolve().parent


def _apply(source: Source, overrides: Sequence[str]) -> list[Problem]:
    problems: list[Problem] = []
    for override in overrides:
        try:
            apply_override(source, override)
        except InputError as error:
            problems.extend(error.problems)
    return problems


def _fill_default_tags(source: Source) -> None:
    """A block which may be left out may also leave out its tag: `control: {alpha: 4}` is CONCUR's."""
    for name, field in Workload.model_fields.items():
        block, spot = source.value.get(name), spot_of(field.annotation, field)
        if isinstance(block, dict) and spot.tagged is not None and not field.is_required():
            default = field.get_default(call_default_factory=True, validated_data={})
            block.setdefault(spot.tagged.key, getattr(default, spot.tagged.key))


def _system_prompt(source: Source) -> tuple[str, list[Problem]]:
    """The text of `agent.system` or `agent.system_file`, and a problem if the file is no text."""
    agent = source.value.get("agent")
    agent = agent if isinstance(agent, dict) else {}
    file = agent.get("system_file")
    if not isinstance(file, str) or not Path(file).is_file():
        return str(agent.get("system") or ""), []
    try:
        return Path(file).read_text(encoding="utf-8"), []
    except (UnicodeDecodeError, OSError):
        return "", [
            source.problem(
                ("agent", "system_file"), f"{shown_path(Path(file))} is not UTF-8 text", "save the file as UTF-8"
            )
        ]


def _task_problems(source: Source, known: Sequence[Problem]) -> list[Problem]:
    """What is wrong with the tasks, if the sections that describe them are right by themselves."""
    try:
        tasks = Tasks.model_validate_json(json.dumps(source.value.get("tasks")), strict=True)
        verify = _VERIFY.validate_json(json.dumps(source.value.get("verify", [])), strict=True)
        if any(problem.key == "tasks.file" for problem in known):
            compile_prompt(tasks, source)
        else:
            read_tasks(tasks, verify, source)
    except ValidationError:
        pass
    except InputError as error:
        return list(error.problems)
    return []


def _in_order(file: str, problems: list[Problem]) -> list[Problem]:
    """The workload file's own problems first, by line."""
    return sorted(problems, key=lambda problem: (problem.file != file, problem.line or 0))
