"""The scripted model: what an agent says is decided by a script, which acts on what the agent's tools returned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tokenizers import Tokenizer

from concur_batch.simulator.actions import Call, write_turn
from concur_batch.simulator.conversation import (
    ActionFormat,
    Message,
    first_user_text,
    observations,
    read_conversation,
)
from concur_batch.simulator.model import ChatTokens, Function
from concur_batch.simulator.request import TokenIds

TASK_PATTERN = r"Task (\S+)"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptCall(_Part):
    """A tool call; every string among its arguments is a template."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Step(_Part):
    """A turn. It is skipped where `when`, a Jinja2 expression, is false."""

    think: str
    calls: list[ScriptCall]
    when: str | None = None


class Script(_Part):
    """What is done about a task. An agent follows the variant that its seed chooses: seed modulo their number.

    Templates and `when` are Jinja2 over `obs` (what every tool call so far returned, in order), `last` (the latest of
    them), `sample` (the seed), `turn` (assistant turns so far), with the functions and filters `find(text, regex)`
    (the first match's first group, or the match, or ""), `find_all(text, regex)`, `lines(text)` and `number(text)`
    (the first number in it). In regular expressions ^ and $ match at lines.
    """

    id: str
    variants: Annotated[list[list[Step]], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model decides to say."""

    think: str
    calls: Sequence[Call]


def read_scripts(lines: Iterable[str]) -> dict[str, Script]:
    """Scripts from JSON Lines, by task. Raises ValueError that names the line."""
    scripts: dict[str, Script] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            script = Script.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the line"
            raise ValueError(f"line {number}: {place}: {first['msg']}") from error
        if script.id in scripts:
            raise ValueError(f"line {number}: a second script for {script.id}")
        scripts[script.id] = script
    return scripts


class ScriptedModel:
    """A Model that follows scripts. The task is found in the first user message by `task_pattern`'s first group."""

    def __init__(
        self,
        scripts: Mapping[str, Script],
        tokenizer: Tokenizer,
        form: ActionFormat,
        task_pattern: str = TASK_PATTERN,
    ) -> None:
        self._scripts = scripts
        self._form = form
        self._task = re.compile(task_pattern)
        self._chat = ChatTokens.of(tokenizer)
        self._tokenizer = tokenizer
        # A model's text that looks like a special token is text: only the end of the turn is the real token.
        self._writer = Tokenizer.from_str(tokenizer.to_str())
        self._writer.encode_special_tokens = True

    def reply(self, input_ids: TokenIds, seed: int, offered: Sequence[Function] = ()) -> TokenIds:
        text = self.say(read_conversation(input_ids, self._tokenizer, self._chat), seed)
        ids = self._writer.encode(text, add_special_tokens=False).ids
        return np.array([*ids, self._chat.end], dtype=np.int32)

    def say(self, messages: Sequence[Message], seed: int) -> str:
        """The next assistant turn. A script that cannot go on submits what went wrong as its answer."""
        try:
            found = self._task.search(first_user_text(messages))
            if found is None:
                raise ValueError(f"no task in the first user message (looked for {self._task.pattern!r})")
            script = self._scripts.get(found.group(1))
            if script is None:
                raise ValueError(f"no script for task {found.group(1)}")
            turn = next_turn(script.variants[seed % len(script.variants)], messages, self._form, seed)
            return write_turn(self._form, turn.think, turn.calls)
        except Exception as error:  # whatever a template does, the agent has to see it
            problem = f"script error: {type(error).__name__}: {error}"
            return write_turn(self._form, problem, [Call("submit", {"answer": problem})])


def next_turn(steps: Sequence[Step], messages: Sequence[Message], form: ActionFormat, seed: int) -> Turn:
    """Replay the conversation to find the place in the script, and fill in the step that comes next.

    At every turn it is the first step after the previous one whose `when` held, given what was known then. After the
    last one the agent submits nothing. Raises what a template raises.
    """
    known: list[str] = []
    position = turn = 0
    for message in messages:
        if message.role == "assistant":
            position = _eligible(steps, position, _names(known, seed, turn)) + 1
            turn += 1
        elif turn:
            known.extend(observations(message, form))
    names = _names(known, seed, turn)
    index = _eligible(steps, position, names)
    if index >= len(steps):
        return Turn("There is nothing left to do.", [Call("submit", {"answer": ""})])
    step = steps[index]
    calls = [
        Call(call.name, {key: _filled(value, names) for key, value in call.arguments.items()}) for call in step.calls
    ]
    return Turn(_filled(step.think, names), calls)


def _names(known: Sequence[str], seed: int, turn: int) -> dict[str, Any]:
    names = {"obs": list(known), "sample": seed, "turn": turn}
    return names | {"last": known[-1]} if known else names


def _eligible(steps: Sequence[Step], position: int, names: Mapping[str, Any]) -> int:
    """Index of the first step from `position` whose `when` holds; the number of steps where there is none."""
    for index in range(position, len(steps)):
        when = steps[index].when
        if when is None or _expression(when)(**names):
            return index
    return len(steps)


def _filled(value: Any, names: Mapping[str, Any]) -> Any:
    """`value` with every string in it rendered as a template."""
    if isinstance(value, str):
        return _template(value).render(**names)
    if isinstance(value, list):
        return [_filled(item, names) for item in value]
    if isinstance(value, dict):
        return {key: _filled(item, names) for key, item in value.items()}
    return value


def find(text: str, regex: str) -> str:
    """The first match's first group, or the whole match where there is no group; "" without a match."""
    found = re.search(regex, text, re.MULTILINE)
    if found is None:
        return ""
    return (found.group(1) if found.re.groups else found.group()) or ""


def find_all(text: str, regex: str) -> list[Any]:
    """All matches, as `re.findall` gives them."""
    return re.findall(regex, text, re.MULTILINE)


def lines(text: str) -> list[str]:
    """The lines of a text."""
    return text.splitlines()


def number(text: object) -> float:
    """The first number in a text; raises ValueError where there is none."""
    found = re.search(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", str(text))
    if found is None:
        raise ValueError(f"no number in {str(text)[:80]!r}")
    return float(found.group().replace(",", ""))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    for function in (find, find_all, lines, number):
        environment.globals[function.__name__] = function
        environment.filters[function.__name__] = function
    return environment


_ENVIRONMENT = _environment()


@lru_cache(maxsize=16_384)
def _template(source: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(source)


@lru_cache(maxsize=16_384)
def _expression(source: str) -> Any:
    return _ENVIRONMENT.compile_expression(source, undefined_to_none=False)
