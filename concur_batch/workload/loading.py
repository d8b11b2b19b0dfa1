"""From workload.yaml and `--set` arguments to a valid workload and its tasks, or to every problem at once."""

from __future__ import annotations

import copy
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from concur_batch.trace.files import TraceError
from concur_batch.trace.manifest import MANIFEST, read_manifest
from concur_batch.workload.consistency import contradictions
from concur_batch.workload.errors import InputError, Problem, shown_path
from concur_batch.workload.explain import explain
from concur_batch.workload.overrides import apply_override
from concur_batch.workload.places import make_absolute, missing_places
from concur_batch.workload.schema import AnyControl, Tasks, Verify, Workload
from concur_batch.workload.shape import spot_of, without_tags
from concur_batch.workload.source import KeyPath, Origin, Source, read_yaml
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


# What a simulation reads of all the files that a workload names.
SIMULATED = frozenset(("tasks", "replay"))


def load(path: Path | str, overrides: Sequence[str] = (), needed: Container[str] | None = None) -> Loaded:
    """Read a workload file, with the overrides applied in their order; of the files that its blocks name, those of the
    `needed` ones must be there (None: of all).

    Raises InputError with everything that is wrong: YAML, unknown keys, wrong values, missing files. If anything is,
    the tasks are read as well, as far as they can be, so that their problems are told at once too.
    """
    source, base_dir = _read(Path(path))
    return _load(source, Path(path), base_dir, overrides, needed)


def load_replay(
    path: Path | None,
    run: Path,
    overrides: Sequence[str] = (),
    needed: Container[str] | None = None,
    option: str = "--replay",
) -> Loaded:
    """The same to replay a run's agents under this workload file, or under the run's own workload where it is None; or
    those of a file of `concur replay-from`, which has no workload of its own.

    Raises InputError with everything that is wrong, also where `run`, which `option` named, is no run's directory.
    """
    if run.is_file():
        return _load_file(path, run, overrides, needed, option)
    try:
        manifest = read_manifest(run)
    except TraceError as error:
        raise InputError([Problem(option, None, "", str(error), "give one that `concur run` has made")]) from None
    if path is None:
        path = run / MANIFEST
        source, base_dir = _of_manifest(run, manifest), Path.cwd()
        source.value["model"] = {**source.value["model"], "tokenizer": str((run / "model").resolve())}
    else:
        source, base_dir = _read(path)
    _replay(source, "run", run)
    return _load(source, path, base_dir, overrides, needed)


def _load_file(
    path: Path | None, file: Path, overrides: Sequence[str], needed: Container[str] | None, option: str
) -> Loaded:
    if path is None:
        reason = f"{shown_path(file)} is a file, whose trajectories name no model and no engine"
        raise InputError([Problem(option, None, "", reason, "give a WORKLOAD.YAML with it, or a run's directory")])
    source, base_dir = _read(path)
    _replay(source, "file", file)
    return _load(source, path, base_dir, overrides, needed)


def _replay(source: Source, key: str, path: Path) -> None:
    """Let the workload replay what is there, instead of its tasks."""
    for block in ("tasks", "verify"):
        source.value.pop(block, None)
        source.forget((block,))
    source.value["replay"] = {key: str(path.resolve())}


def load_again(run: Path, manifest: Mapping[str, Any], control: AnyControl | None, overrides: Sequence[str]) -> Loaded:
    """The workload of a run that goes on, as its manifest has it, under the settings that control has by now.

    Where the tokenizer's directory is gone, the run's own copy stands for it. Raises InputError with everything that is
    wrong.
    """
    source = _of_manifest(run, manifest)
    if control is not None:
        source.value["control"] = control.model_dump(mode="json")
    model = source.value["model"]
    if not Path(model["tokenizer"]).is_dir():
        source.value["model"] = {**model, "tokenizer": str((run / "model").resolve())}
    return _load(source, Path(manifest["workload_file"]), Path.cwd(), overrides, None)


def _of_manifest(run: Path, manifest: Mapping[str, Any]) -> Source:
    """The workload in a run's manifest; the run may have been moved since."""
    file = str(run / MANIFEST)
    values = copy.deepcopy({**manifest["workload"], "output": str(run.resolve().parent)})
    return Source(file, values, {(): Origin(file, None)})


def _load(
    source: Source, path: Path, base_dir: Path, overrides: Sequence[str], needed: Container[str] | None
) -> Loaded:
    problems = _apply(source, overrides)
    _fill_default_tags(source)
    make_absolute(source, base_dir)
    workload, readable, found = _validate(source)
    problems += found
    problems += missing_places(source, needed)
    system, system_problems = _system_prompt(source)
    problems += system_problems if needed is None or "agent" in needed else []
    if workload is None or problems:
        raise InputError(_in_order(source.file, [*problems, *_task_problems(source, readable, problems)]))
    return Loaded(workload, path, base_dir, system, source)


def _validate(source: Source) -> tuple[Workload | None, dict[str, Any], list[Problem]]:
    """The workload if nothing is wrong with it, its values without the wrong ones, and all problems.

    A wrong value hides what its block as a whole is checked for. So it is taken out and the rest read again; what is
    said then of a value that was taken out is no news.
    """
    value: dict[str, Any] = copy.deepcopy(source.value)
    problems: list[Problem] = []
    taken: list[str] = []
    while True:
        try:
            workload = Workload.model_validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            before = len(taken)
            for detail in error.errors(include_url=False):
                news = detail["type"] == "value_error" and not _speaks_of(detail["msg"], taken[:before])
                if before == 0 or news:
                    problems.append(explain(source, detail))
                if (key := _take_out(value, without_tags(source.value, detail["loc"]))) is not None:
                    taken.append(key)
            if len(taken) == before:
                return None, value, problems
            continue
        if not problems:
            problems = list(contradictions(workload, source))
        return (None if problems else workload), value, problems


def _speaks_of(message: str, keys: Sequence[str]) -> bool:
    return any(f"`{key}`" in message for key in keys)


def _take_out(value: Any, path: KeyPath) -> str | None:
    """Remove the value at the path, unless it is a whole block; its key, if there was one."""
    *holders, last = path if path else ("",)
    for part in holders:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    if not isinstance(value, dict) or last not in value or isinstance(value[last], dict):
        return None
    del value[last]
    return str(last)


def load_tasks(loaded: Loaded) -> list[Task]:
    """The workload's tasks, in the order of their file; it must have some. Raises InputError with every bad row."""
    assert loaded.workload.tasks is not None, "it is a replay"
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


def _task_problems(source: Source, readable: dict[str, Any], known: Sequence[Problem]) -> list[Problem]:
    """What is wrong with the tasks, if the readable part of the sections that describe them is enough to read them."""
    try:
        tasks = Tasks.model_validate_json(json.dumps(readable.get("tasks")), strict=True)
        # A check of which something was taken out would ask for the default's column.
        whole = readable.get("verify") == source.value.get("verify")
        verify = _VERIFY.validate_json(json.dumps(readable.get("verify", []) if whole else []), strict=True)
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
