"""An agent's history as messages of OpenAI's protocol, for an engine that takes no token ids. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from concur_batch.agent.actions import Action, Calls, Malformed, Truncated, parse
from concur_batch.agent.formats.action import ActionError, Call, read_call
from concur_batch.agent.prompting import Format, initial_messages, observation_messages, retry_messages
from concur_batch.agent.template import ChatTemplate
from concur_batch.engine.protocol import Chat, FinishReason
from tools_env.spec import ToolResult, ToolSpec

if TYPE_CHECKING:
    from concur_batch.agent.encoding import Tokenizer


class _Protocol(NamedTuple):
    """What OpenAI's protocol can say. Whether the model knows a system prompt, only its chat template tells."""

    takes_system: bool = True
    takes_tools: bool = True
    takes_tool_role: bool = True


class Piece(NamedTuple):
    """A piece of what the model has written; `markup` is of the format, and may be made of control tokens."""

    text: str
    markup: bool = False


class Conversation:
    """Begins with the prompt; then for each turn: send `chat`, `hear` the answer, and `observe` or `correct`.

    The assistant's messages stay as the server gave them, and its calls are answered under their ids. A message whose
    calls cannot be parsed stays as text: servers parse the arguments of earlier calls, and would refuse the history.
    """

    def __init__(
        self, system: str, prompt: str, specs: Sequence[ToolSpec], format: Format, template: ChatTemplate
    ) -> None:
        self._format = format
        self._specs = {spec.name: spec for spec in specs}
        self._protocol = _Protocol(template.takes_system)
        self._thinking = template.opens_thinking
        first, self._tools = initial_messages(system, prompt, specs, format, self._protocol)
        self._messages: list[Mapping[str, Any]] = [*first]
        self._asked: list[tuple[str, int]] = []  # the calls to answer: id, and which of the action's calls it is

    @property
    def chat(self) -> Chat:
        """All so far, for the next generation."""
        return Chat(tuple(self._messages), self._tools)

    def hear(self, message: Mapping[str, Any], finish_reason: FinishReason) -> tuple[list[Piece], Action]:
        """Add the assistant's message: what the model has written for it, as far as we can tell, and its action."""
        calls = list(message.get("tool_calls") or ()) if self._format == "hermes" else []
        reasoning = list(_reasoning(message, opened=self._thinking))
        said = list(_said(message, calls))
        # A null says nothing, and servers refuse an empty list of calls.
        kept = {name: value for name, value in message.items() if value and name != "tool_calls"}
        kept |= {"role": "assistant", "content": message.get("content")}
        sound = all(map(_is_sound, calls))
        if calls and sound:
            kept["tool_calls"] = calls
        elif calls:
            kept["content"] = "".join(piece.text for piece in said)
        self._messages.append(kept)
        self._asked = []
        if calls:
            action, answered = self._read_calls(calls, finish_reason)
            if sound:
                self._asked = [(call["id"], index) for call, index in zip(calls, answered, strict=True)]
        else:
            text = message.get("content") or ""
            thinking = self._thinking and "</think>" in text
            action = parse(self._format, text, finish_reason, list(self._specs.values()), thinking=thinking)
        return [*reasoning, *said], action

    def observe(self, exchanges: Sequence[tuple[Call, ToolResult]]) -> None:
        """Add what the calls of the action returned."""
        if not self._asked:  # they stood in the text
            plain = self._protocol._replace(takes_tool_role=False)
            self._messages += observation_messages(exchanges, self._format, plain)
            return
        results = observation_messages(exchanges, self._format, self._protocol)
        self._messages += [{**results[index], "tool_call_id": call_id} for call_id, index in self._asked]

    def correct(self, reason: str) -> None:
        """Add what is to be mended in the answer."""
        if self._asked:
            self._messages += [{"role": "tool", "tool_call_id": name, "content": reason} for name, _ in self._asked]
        else:
            self._messages += retry_messages(reason, self._format)

    def _read_calls(self, calls: Sequence[Mapping[str, Any]], finish_reason: FinishReason) -> tuple[Action, list[int]]:
        """By the rules of `actions`: taken as a whole or not at all, and the same call again counts once. Beside the
        action, which of its calls each of these is."""
        unique: dict[bytes, Call] = {}
        indices: list[int] = []
        problem = ""
        for call in calls:
            function = call.get("function") or {}
            try:
                read = read_call(str(function.get("name")), function.get("arguments"), self._specs)
                key = orjson.dumps((read.name, read.arguments), option=orjson.OPT_SORT_KEYS)
                unique.setdefault(key, read)
                indices.append(list(unique).index(key))
            except ActionError as error:
                problem = problem or str(error)
                indices.append(-1)
        if finish_reason != "stop":
            return Truncated(), indices
        return Malformed(problem) if problem else Calls(tuple(unique.values()), ""), indices


def encode_pieces(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> list[int]:
    """Token ids of what the model has written: an estimate, since a text has more than one tokenization."""
    encoded = (tokenizer.encode(text) if markup else tokenizer.encode_content(text) for text, markup in pieces)
    return [token for ids in encoded for token in ids]


def written(message: Mapping[str, Any], *, opened: bool) -> list[Piece]:
    """What the model has written for a message with all its calls. `opened`: the prompt ends inside <think> already."""
    return [*_reasoning(message, opened=opened), *_said(message, message.get("tool_calls") or ())]


def _reasoning(message: Mapping[str, Any], *, opened: bool) -> Iterator[Piece]:
    """What a server has parted from the content. `opened`: the prompt ends inside <think> already."""
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if reasoning:
        yield Piece("" if opened else "<think>\n", markup=True)
        yield Piece(str(reasoning))
        yield Piece("\n</think>\n\n", markup=True)


def _said(message: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> Iterator[Piece]:
    """Content and calls as a model writes them for the hermes format."""
    content = message.get("content") or ""
    yield Piece(content)
    for index, call in enumerate(calls):
        function = call.get("function") or {}
        arguments = function.get("arguments") or "{}"
        arguments = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        name = orjson.dumps(str(function.get("name"))).decode()
        yield Piece("\n<tool_call>\n" if index or content else "<tool_call>\n", markup=True)
        yield Piece(f'{{"name": {name}, "arguments": {arguments}}}')
        yield Piece("\n</tool_call>", markup=True)


def _is_sound(call: Mapping[str, Any]) -> bool:
    """Whether a server takes the call back as a part of the history, and its answer."""
    try:
        arguments = orjson.loads(call["function"]["arguments"])
        return isinstance(call["id"], str) and isinstance(call["function"]["name"], str) and isinstance(arguments, dict)
    except (KeyError, TypeError, ValueError):
        return False
