"""A change of the settings of a run that goes on: `control.u_high=0.6`, read and checked as `--set` is. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from concur_batch.workload.errors import InputError, Problem, shown
from concur_batch.workload.explain import explain
from concur_batch.workload.overrides import apply_override
from concur_batch.workload.schema import AnyControl
from concur_batch.workload.source import Source

_CONTROL: TypeAdapter[AnyControl] = TypeAdapter(Annotated[AnyControl, Field(discriminator="policy")])
# What is read once, when the run or a host starts: a change would be on record and do nothing.
_FIXED = (
    "control.initial_window",
    "control.extensions.kv_budget_tokens",
    "control.extensions.deadline_seconds",
    "control.extensions.long_request_tokens",
)


def read_control(values: Mapping[str, Any]) -> AnyControl:
    """A `control` block from plain JSON values. Raises pydantic's ValidationError."""
    return _CONTROL.validate_json(json.dumps(values), strict=True)


def changed(control: AnyControl, settings: Sequence[str]) -> AnyControl:
    """The settings after `key=value` changes, in their order. Raises InputError with everything that is wrong."""
    file = f"set {' '.join(settings)}"
    source = Source(file, {"control": _plain(control)})
    problems: list[Problem] = []
    for setting in settings:
        key, equals, _ = setting.partition("=")
        if not equals:
            reason = "is not of the form key.path=value"
            problems.append(Problem(f"set {setting}", None, "", reason, "write control.u_high=0.6"))
            continue
        if not key.strip().startswith("control."):
            reason = "cannot be set while the run goes on"
            problems.append(Problem(f"set {setting}", None, key, reason, "give keys under `control.`"))
            continue
        try:
            apply_override(source, setting)
        except InputError as error:
            problems.extend(error.problems)
    policy = source.value["control"].get("policy")
    if policy != control.policy:
        reason = f"a running batch keeps its policy, {control.policy}"
        problems.append(source.problem(("control", "policy"), reason, "start another run for another policy"))
    if problems:
        raise InputError(map(_without_dashes, problems))
    try:
        after = read_control(source.value["control"])
    except ValidationError as error:
        details = error.errors(include_url=False)
        located = [explain(source, {**detail, "loc": ("control", *detail["loc"])}) for detail in details]
        raise InputError(map(_without_dashes, located)) from None
    fixed = [key for key, _, _ in _walk("control", _plain(control), _plain(after)) if key in _FIXED]
    if fixed:
        reason = "is fixed for the run: it is read at the start"
        raise InputError(Problem(file, None, key, reason, "set it in the workload of the next run") for key in fixed)
    return after


def differences(before: AnyControl, after: AnyControl) -> list[str]:
    """`control.u_high 0.5 -> 0.6` for each value that is another one."""
    walked = _walk("control", _plain(before), _plain(after))
    return [f"{key} {shown(old)} -> {shown(new)}" for key, old, new in walked]


def _plain(control: AnyControl) -> dict[str, Any]:
    return control.model_dump(mode="json")


def _walk(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before | after:
            yield from _walk(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield path, before, after


def _without_dashes(problem: Problem) -> Problem:
    """`concur ctl` says `set`, where `concur run` says `--set`."""
    return replace(problem, file=problem.file.removeprefix("--"))
