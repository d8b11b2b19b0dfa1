"""A chat as the prompt that SGLang would make of it, by the chat template of the tokenizer's directory. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from concur_batch.hub.environment import TemplateError
from concur_batch.simulator.ask import BadRequest


class ChatPrompt:
    """`sources` are the templates by name, for the environment of hub; `variables` are the tokens that they may print.

    Raises TemplateError.
    """

    def __init__(
        self, environment: jinja2.Environment, sources: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        try:
            self._templates = {name: environment.from_string(text) for name, text in sources.items()}
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"line {error.lineno}: {error.message}") from error
        self._variables = dict(variables)

    def render(self, body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a chat request's `messages`, opened for the answer. Raises BadRequest."""
        if "default" not in self._templates:
            raise BadRequest("The tokenizer's directory has no chat template: use /v1/completions or /generate.")
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        more = body.get("chat_template_kwargs") or {}
        if not isinstance(more, dict):
            raise BadRequest("`chat_template_kwargs` must be an object.")
        variables = {
            **self._variables,
            **more,
            "messages": _messages(body),
            "tools": tools or None,
            "add_generation_prompt": True,
        }
        try:
            return self._templates[name].render(variables)
        except Exception as error:  # whatever a template's expressions raise on messages they do not expect
            raise BadRequest(f"The chat template refuses these messages: {error}") from error


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("Messages cannot be empty.")
    return [_message(message, number) for number, message in enumerate(messages)]


def _message(message: Any, number: int) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest(f"messages.{number}: must be an object with a `role`.")
    plain = {**message, "content": _content(message.get("content"), number)}
    if message.get("tool_calls"):
        plain["tool_calls"] = [_tool_call(call, number) for call in message["tool_calls"]]
    return plain


def _content(content: Any, number: int) -> str:
    """As one string, which every template takes."""
    if content is None:
        return ""
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise BadRequest(f"messages.{number}.content: the simulated engine takes parts of text only.")
        return " ".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise BadRequest(f"messages.{number}.content: must be a string or a list of parts.")
    return content


def _tool_call(call: Any, number: int) -> dict[str, Any]:
    """With its arguments as an object: OpenAI's clients send JSON, templates print an object as JSON."""
    try:
        function = dict(call["function"])
        if isinstance(function.get("arguments"), str):
            function["arguments"] = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadRequest(f"messages.{number}.tool_calls: not function calls with JSON arguments: {error}") from error
    return {**call, "function": function}
