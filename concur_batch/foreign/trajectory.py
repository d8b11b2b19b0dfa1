"""A trajectory that another program has recorded, whatever the format was. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from concur_batch.agent.spec import Ending
from concur_batch.agent.template import Message, Tools

Format = Literal["mini-swe-agent", "atif", "messages"]
Timing = Literal["measured", "between_steps", "drawn"]
"""How a call's seconds are known: between the moments just before and after it, between the moments of two steps, which
hold a generation as well, or not at all."""


class Unfit(Exception):
    """A trajectory cannot be replayed; the message is the reason under which it is counted."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call and its observation. `arguments` is JSON as the model wrote it, `seconds` None where nothing tells them.

    Not `written` is what stands in the content anyway, as a fenced command does, or what nobody called by name.
    """

    name: str
    arguments: str
    output: str = ""
    seconds: float | None = None
    exit_code: int | None = None
    written: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """`before` are the messages since the turn before, then the model says the rest, and its calls follow. The ids are
    those of the whole prompt and of the output, where the file tells them."""

    before: tuple[Message, ...]
    reasoning: str
    content: str
    calls: tuple[Call, ...]
    prompt_ids: tuple[int, ...] | None = None
    output_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """At least one turn, the first with a prompt. `timing` is how the seconds that are told are known."""

    name: str
    format: Format
    turns: tuple[Turn, ...]
    tools: Tools | None
    ending: Ending
    timing: Timing
