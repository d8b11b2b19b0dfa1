"""What all formats come to: a list of what was said, in order; and the turns in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from concur_batch.agent.template import Message
from concur_batch.foreign.trajectory import Call, Turn, Unfit

# What stands between two turns where no call is told: a program's answer to the text, or a person's.
ENVIRONMENT = "environment"

Role = Literal["system", "user", "assistant", "tool"]


class Asked(NamedTuple):
    """A call that the model made. See Call."""

    id: str
    name: str
    arguments: str
    written: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that was said. `at_seconds` is the moment when it stood, by a clock of the file's own; `call_id` is the
    call that a tool answers. What was `copied` from an earlier trajectory is no turn of this one."""

    role: Role
    content: str
    reasoning: str = ""
    asked: tuple[Asked, ...] = ()
    call_id: str = ""
    name: str = ""
    at_seconds: float | None = None
    exit_code: int | None = None
    copied: bool = False
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None


def turns_of(entries: Sequence[Entry]) -> tuple[Turn, ...]:
    """The turns: what was said to the model before each, what it said, and its calls with what they returned. What
    follows the last turn is no prompt of a turn. Raises Unfit where there is no turn or no prompt."""
    heads = [number for number, entry in enumerate(entries) if entry.role == "assistant" and not entry.copied]
    if not heads:
        raise Unfit("it has no turn of an assistant")
    if heads[0] == 0:
        raise Unfit("it begins with the assistant's turn: nothing tells the prompt")
    names = {asked.id: asked.name for entry in entries for asked in entry.asked if asked.id}
    turns, before = [], entries[: heads[0]]
    for head, end in pairwise([*heads, len(entries)]):
        said, answers = entries[head], entries[head + 1 : end]
        shown = tuple(_message(entry, names) for entry in before)
        calls = _calls(said, answers) if said.asked else _unasked(said, answers)
        turns.append(Turn(shown, said.reasoning, said.content, calls, said.prompt_ids, said.output_ids))
        before = answers
    return tuple(turns)


def _message(entry: Entry, names: Mapping[str, str]) -> Message:
    content = entry.content
    if entry.role == "assistant":  # copied: its calls can only be shown as a text
        content += "".join(f"\n{asked.name} {asked.arguments}" for asked in entry.asked if asked.written)
    message: Message = {"role": entry.role, "content": content}
    if entry.role == "tool":
        message["name"] = entry.name or names.get(entry.call_id, "tool")
    return message


def _calls(said: Entry, answers: Sequence[Entry]) -> tuple[Call, ...]:
    """Each call with its answer: by its id, else by its place among those that no id places."""
    seconds = _seconds(said, answers)
    results = [index for index, answer in enumerate(answers) if answer.role == "tool"] or range(len(answers))
    ids = {asked.id for asked in said.asked if asked.id}
    by_id = {answers[index].call_id: index for index in results if answers[index].call_id in ids}
    by_place = iter([index for index in results if answers[index].call_id not in ids])
    calls = []
    for asked in said.asked:
        found = by_id[asked.id] if asked.id in by_id else next(by_place, None)
        if found is None:
            calls.append(Call(asked.name, asked.arguments, written=asked.written))
        else:
            told = answers[found].content, seconds[found], answers[found].exit_code
            calls.append(Call(asked.name, asked.arguments, *told, asked.written))
    return tuple(calls)


def _unasked(said: Entry, answers: Sequence[Entry]) -> tuple[Call, ...]:
    """All that was answered to a turn that called nothing is one call of the environment."""
    if not answers:
        return ()
    told = [seconds for seconds in _seconds(said, answers) if seconds is not None]
    output = "\n".join(answer.content for answer in answers)
    return (Call(ENVIRONMENT, "{}", output, sum(told) if told else None, answers[-1].exit_code, written=False),)


def _seconds(said: Entry, answers: Sequence[Entry]) -> list[float | None]:
    """How long each answer took, one after the other; None where a moment is not told, or a clock went back."""
    moments = [said.at_seconds, *(answer.at_seconds for answer in answers)]
    return [
        None if before is None or after is None or after < before else after - before
        for before, after in pairwise(moments)
    ]
