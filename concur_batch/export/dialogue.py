"""A trajectory as messages, made by what made its prompts. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from concur_batch.agent.actions import Action, Calls, Malformed, parse
from concur_batch.agent.conversation import Conversation
from concur_batch.agent.formats.hermes import before_calls
from concur_batch.agent.instructions import Instructions
from concur_batch.agent.prompting import initial_messages, observation_messages, observation_role, retry_messages
from concur_batch.agent.template import MARK, ChatTemplate, TemplateError
from concur_batch.export.form import Unfit
from concur_batch.export.trajectory import Trajectory, Turn

ChatMessage = dict[str, Any]
"""A message of OpenAI's protocol, but that the arguments of a call are an object, as chat templates take them.
`content` is always a text; a key that says nothing is absent."""

# In the order in which a message has them.
_SAID = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


@dataclass(frozen=True, slots=True)
class Dialogue:
    """`answers` are the places of the assistant's messages among all, one a turn; the last is the last message. `texts`
    are what the model wrote in each turn, with what of it the generation prompt had written already. `tools`
    are for the chat template; None where the system prompt tells of them."""

    messages: Sequence[ChatMessage]
    answers: Sequence[int]
    texts: Sequence[str]
    tools: Sequence[Mapping[str, Any]] | None


class Dialogues:
    """Makes the dialogues of one run, whose agents were told these instructions by this template.

    Calls of the hermes format are `tool_calls` where the template prints such; otherwise they stay in the text, as the
    model wrote them, and so do those of react and bash. Reasoning stays in the text, as it was written; what a chat
    server has parted from it is `reasoning_content`. What followed the last turn no model has seen: it is left out.
    """

    def __init__(self, instructions: Instructions, template: ChatTemplate) -> None:
        self._instructions = instructions
        self._template = template
        self._calls_apart = instructions.format == "hermes" and prints_calls(template)
        self._answers_apart = self._calls_apart and observation_role(instructions.format, template) == "tool"
        self._opening = _opening(template)

    def of(self, trajectory: Trajectory) -> Dialogue:
        """The dialogue of a trajectory whose turns are all there. Raises Unfit where it cannot be told any more."""
        prompt = trajectory.agent["prompt"]
        if prompt is None:
            raise Unfit("no prompt on record")
        if trajectory.turns[0].row["output_message"] is not None:
            return self._with_server(prompt, trajectory.turns)
        return self._by_template(prompt, trajectory.turns)

    def _by_template(self, prompt: str, turns: Sequence[Turn]) -> Dialogue:
        told, template = self._instructions, self._template
        first, tools = initial_messages(told.system, prompt, told.specs, told.format, template)
        messages: list[ChatMessage] = [*first]
        answers: list[int] = []
        for number, turn in enumerate(turns):
            action = self._action(turn)
            answers.append(len(messages))
            messages.append(self._answer(number, turn, action))
            if turn is turns[-1]:
                break
            match action:
                case Calls():
                    messages += self._observed(number, turn)
                case Malformed(reason=reason):
                    messages += retry_messages(reason, told.format)
        return Dialogue(messages, answers, self._texts(turns), tools)

    def _with_server(self, prompt: str, turns: Sequence[Turn]) -> Dialogue:
        """A chat server was sent these very messages, and the assistant's are its own."""
        told = self._instructions
        talk = Conversation(told.system, prompt, told.specs, told.format, self._template)
        answers: list[int] = []
        for turn in turns:
            answers.append(len(talk.chat.messages))
            _, action = talk.hear(orjson.loads(turn.row["output_message"]), turn.row["finish_reason"])
            _check(turn, action)
            if turn is turns[-1]:
                break
            match action:
                case Calls():
                    talk.observe(turn.calls)
                case Malformed(reason=reason):
                    talk.correct(reason)
        chat = talk.chat
        messages = [_plain(message) for message in chat.messages]
        return Dialogue(messages, answers, self._texts(turns), chat.tools)

    def _texts(self, turns: Sequence[Turn]) -> list[str]:
        return [self._text(turn) for turn in turns]

    def _text(self, turn: Turn) -> str:
        return self._opening + str(turn.row["output_text"])

    def _action(self, turn: Turn) -> Action:
        told, row = self._instructions, turn.row
        thinking = self._template.opens_thinking
        action = parse(told.format, row["output_text"], row["finish_reason"], told.specs, thinking=thinking)
        _check(turn, action)
        return action

    def _answer(self, number: int, turn: Turn, action: Action) -> ChatMessage:
        said = self._text(turn)
        if not (self._calls_apart and isinstance(action, Calls)):
            return {"role": "assistant", "content": said}
        # What stands between the words and the calls is the template's.
        calls = [
            {
                "id": call_id(number, index),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, (call, _) in enumerate(turn.calls)
        ]
        return {"role": "assistant", "content": before_calls(said).rstrip(), "tool_calls": calls}

    def _observed(self, number: int, turn: Turn) -> list[ChatMessage]:
        observed: list[ChatMessage] = [*observation_messages(turn.calls, self._instructions.format, self._template)]
        if not self._answers_apart:
            return observed
        return [message | {"tool_call_id": call_id(number, index)} for index, message in enumerate(observed)]


def call_id(turn: int, index: int) -> str:
    """The id of a call, unique in its trajectory. Nine letters and digits, since Mistral's templates take no others."""
    return f"t{turn:04d}c{index:03d}"


def prints_calls(template: ChatTemplate) -> bool:
    """Whether the template shows the `tool_calls` of an assistant's message."""
    call = {"id": call_id(0, 0), "type": "function", "function": {"name": MARK, "arguments": {}}}
    messages: list[ChatMessage] = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    try:
        return MARK in template.render(messages, None, generation_prompt=False)
    except TemplateError:
        return False


def _opening(template: ChatTemplate) -> str:
    """What of the assistant's own text the template's generation prompt has written already."""
    if not template.opens_thinking:
        return ""
    prompt = template.render([{"role": "user", "content": "u"}], None, generation_prompt=True)
    return prompt[prompt.rindex("<think>") :]


def _check(turn: Turn, action: Action) -> None:
    """Raises Unfit where the turn's text is read as another action than it was in the run."""
    if type(action).__name__.lower() != turn.row["action"]:
        raise Unfit("its actions are read otherwise by this version")
    if isinstance(action, Calls) and len(action.calls) != len(turn.calls):
        raise Unfit("calls are missing")


def _plain(message: Mapping[str, Any]) -> ChatMessage:
    """A message that was sent to a chat server, or came from it."""
    plain = {name: message[name] for name in _SAID if message.get(name) is not None}
    plain["content"] = message.get("content") or ""
    if (reasoning := message.get("reasoning")) is not None:
        plain.setdefault("reasoning_content", reasoning)
    if "tool_calls" in plain:
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = orjson.loads(function["arguments"])
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}
