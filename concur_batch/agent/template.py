"""A model's chat template: messages to text, and the few facts about it that decide how an agent is prompted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import jinja2

from concur_batch.hub.environment import TemplateError, template_environment

__all__ = ["MARK", "ChatTemplate", "Message", "TemplateError", "Tools"]

Message = dict[str, str]
"""`role` and `content`; a message of role `tool` also has the tool's `name`. Content is always one string."""

Tools = Sequence[Mapping[str, Any]]
"""OpenAI function schemas: {"type": "function", "function": {"name", "description", "parameters"}}."""

T = TypeVar("T")

# Stands for a content when a template is examined: letters only, so that no filter of a template alters it.
MARK = "concurmark"


class ChatTemplate:
    """A compiled chat template.

    `sources` maps names to template texts; `tool_use`, where there is one, is used when tools are given, `default`
    otherwise. `variables` are what templates may print, such as `bos_token`. `now` is the moment that
    `strftime_now` tells: fixed, since a date that changes within a run would end every shared prefix.
    Raises TemplateError where a template does not compile.
    """

    def __init__(self, sources: Mapping[str, str], variables: Mapping[str, str], now: datetime) -> None:
        environment = template_environment(now)
        if "default" not in sources:
            raise TemplateError(f"no template named `default` among {sorted(sources)}")
        try:
            self._templates = {name: environment.from_string(text) for name, text in sources.items()}
            # The string constants, in the order of the source.
            self.constants = tuple(
                dict.fromkeys(
                    token.value
                    for text in sources.values()
                    for token in environment.lexer.tokenize(text)
                    if token.type == "string"
                )
            )
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"line {error.lineno}: {error.message}") from error
        self.source = "\n".join(sources.values())
        self._variables = dict(variables)
        self.takes_system = self._shows([{"role": "system", "content": MARK}, {"role": "user", "content": "u"}])
        self.takes_tools = self._shows([{"role": "user", "content": "u"}], [_tool(MARK)])
        self.takes_tool_role = self._takes_tool_role()
        opening = _or_none(lambda: self.render([{"role": "user", "content": "u"}], None, generation_prompt=True))
        # Whether the generation prompt itself opens the model's reasoning.
        self.opens_thinking = (opening or "").rstrip().endswith("<think>")

    def render(self, messages: Sequence[Message], tools: Tools | None, *, generation_prompt: bool) -> str:
        """The text of `messages`, ended by the opening of an assistant's turn if `generation_prompt`.

        Raises TemplateError where the template refuses the messages.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        try:
            return self._templates[name].render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=generation_prompt,
                **self._variables,
            )
        except TemplateError:
            raise
        except Exception as error:  # whatever a template's expressions raise on messages they do not expect
            raise TemplateError(f"{type(error).__name__}: {error}") from error

    def _shows(self, messages: Sequence[Message], tools: Tools | None = None) -> bool:
        """Whether the template accepts the messages and prints what is marked in them."""
        return _or_none(lambda: MARK in self.render(messages, tools, generation_prompt=True)) or False

    def _takes_tool_role(self) -> bool:
        """Whether the role `tool` has a form of its own.

        A template that prints any role's name as it comes (`<|im_start|>{{ role }}`) does not count: its model never
        saw that role.
        """

        def exchange(role: str) -> str:
            opening = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
            results = [{"role": role, "name": "t", "content": f"{MARK}{index}"} for index in range(2)]
            return self.render([*opening, *results], [_tool("t")], generation_prompt=True)

        as_tool = _or_none(lambda: exchange("tool"))
        if as_tool is None or f"{MARK}0" not in as_tool or f"{MARK}1" not in as_tool:
            return False
        as_unknown = _or_none(lambda: exchange("unheardrole"))
        return as_unknown is None or as_unknown.replace("unheardrole", "tool") != as_tool


def _tool(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": "d", "parameters": {"type": "object", "properties": {}}},
    }


def _or_none(render: Callable[[], T]) -> T | None:
    try:
        return render()
    except TemplateError:
        return None
