"""Actions as lines: Thought, Action, Action Input, Final Answer."""

from __future__ import annotations

import re
from typing import Any

from concur_batch.agent.formats.action import (
    UNCLOSED_THINKING,
    Action,
    ActionError,
    Answer,
    Calls,
    Malformed,
    Specs,
    Truncated,
    read_call,
    read_json,
    without_thinking,
)
from tools_env.spec import ToolSpec

# The head of a line that opens a part, in bold or not.
_LABEL = re.compile(
    r"^[ \t]*\**(Thought|Action Input|Action|Observation|Final Answer)\**[ \t]*:\**[ \t]*", re.MULTILINE
)
_ACT = re.compile(r"^[ \t]*\**(?:Action|Final Answer)\**[ \t]*:", re.MULTILINE)
_FENCED = re.compile(r"(?s)```[^\n`]*\n(.*?)\n?```")
_FORM = """\
The form is:
Thought: what you think
Action: the name of one tool
Action Input: its arguments as one JSON object"""


def parse_react(text: str, complete: bool, specs: Specs) -> Action:
    """See `actions`. `complete`: the model ended the turn itself."""
    stripped = without_thinking(text, _ACT)
    if stripped is None:
        return UNCLOSED_THINKING if complete else Truncated()
    text = stripped
    labels = _LABEL.finditer(text)
    act = next((label for label in labels if label[1] not in ("Thought", "Action Input")), None)
    if act is not None and act[1] == "Action":
        action, closed = _read_action(text, act, specs)
    elif act is not None and act[1] == "Final Answer":
        answer, closing = _until(text, act.end(), ("Observation",))
        closed = closing == "Observation"
        action = Answer(answer) if answer else Malformed("the Final Answer is empty")
    else:
        closed = False
        action = Malformed(f"the reply has no Action. {_FORM}\nor, when you are done:\nFinal Answer: your answer")
    return action if complete or closed else Truncated()


def _read_action(text: str, act: re.Match[str], specs: Specs) -> tuple[Action, bool]:
    """The call, or what is wrong with it; and whether the model went on with an observation of its own."""
    closing: str | None = None
    try:
        name = text[act.end() :].partition("\n")[0].strip(" \t\r`'\"*[]")
        if name not in specs:
            read_call(name, {}, specs)
        spec = specs[name]
        label = _LABEL.search(text, act.end())
        if label is not None and label[1] == "Action Input":
            arguments, closing = _read_input(text, label.end(), spec)
        elif spec.parameters.get("required"):
            raise ActionError(f"an Action Input must follow the Action: {name} needs its arguments")
        else:
            arguments, closing = {}, label[1] if label is not None else None
        if closing in ("Action", "Action Input"):
            raise ActionError("one Action at a time: stop after its Action Input")
        call = read_call(name, arguments, specs)
    except ActionError as error:
        return Malformed(f"{error}. {_FORM}"), False
    return Calls((call,), _LABEL.sub("", text[: act.start()]).strip()), closing == "Observation"


def _read_input(text: str, position: int, spec: ToolSpec) -> tuple[Any, str | None]:
    """The arguments, and the label of the line that ends them.

    They are a JSON object of as many lines as it takes, in a code fence or not; or the bare text of a tool that has
    exactly one required argument, a string. Raises ActionError.
    """
    start = position + len(text[position:]) - len(text[position:].lstrip())
    if text.startswith("{", start):
        value, end = read_json(text, start)
        rest, closing = _until(text, end)
        if rest:
            raise ActionError(f"nothing may follow the JSON object of Action Input, but there is {rest[:20]!r}")
        return value, closing
    bare, closing = _until(text, start)
    fenced = _FENCED.fullmatch(bare)
    if fenced is not None:
        bare = fenced[1].strip()
    elif bare.startswith('"'):
        bare = _unquoted(bare)
    only = _only_string(spec)
    # Text that is no object goes on as it is: for a tool of several arguments, to be refused as no JSON.
    return (bare if only is None or bare.startswith("{") else {only: bare}), closing


def _unquoted(bare: str) -> str:
    """What a JSON string stands for, if the whole is one."""
    try:
        value, end = read_json(bare, 0)
    except ActionError:
        return bare
    return value if end == len(bare) else bare


def _only_string(spec: ToolSpec) -> str | None:
    """The name of the tool's one required argument, if it has exactly one and that is a string."""
    required = spec.parameters.get("required", [])
    if len(required) != 1 or spec.parameters["properties"][required[0]].get("type") != "string":
        return None
    return str(required[0])


def _until(text: str, position: int, labels: tuple[str, ...] | None = None) -> tuple[str, str | None]:
    """The text up to the next line with one of `labels` (None: with any), and that label."""
    for label in _LABEL.finditer(text, position):
        if labels is None or label[1] in labels:
            return text[position : label.start()].strip(), label[1]
    return text[position:].strip(), None
