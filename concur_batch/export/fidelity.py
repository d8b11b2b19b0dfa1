"""Whether what is exported is what the engine saw: by its own counts, and by the template's rendering. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal

from concur_batch.agent.encoding import TokenIds, Tokenizer
from concur_batch.agent.increment import closing, rewriting
from concur_batch.agent.template import TemplateError
from concur_batch.export.dialogue import Dialogue

Difference = Literal["tokenization", "whitespace", "calls", "reasoning", "other", "refused"]
"""How the ids of the rendered messages differ from the recorded ones, by the mildest cause that explains all of it.

tokenization: the same text in other tokens. whitespace: beside that, other white space. calls: beside that, the JSON of
calls is written otherwise. reasoning: beside that, <think>...</think> is missing or added. refused: the template takes
no such messages."""

_PARTS = 256  # of texts, whose ids are kept

_SPACE = re.compile(r"\s+")
_CALL = re.compile(r"(?s)<tool_call>(.*?)</tool_call>")
_REASONING = re.compile(r"(?s)<think>.*?</think>")


class Rendering:
    """Renders dialogues by the run's own template and tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = tokenizer.template
        self._rewrites: dict[bool, bool] = {}  # by whether there are tools
        # What all dialogues begin alike with is much of them.
        self._encode_part = lru_cache(_PARTS)(tokenizer.encode)

    def prompt_ids(self, dialogue: Dialogue, turn: int) -> TokenIds:
        """The ids of a turn's prompt, rendered anew. Raises TemplateError."""
        return self._tokenizer.encode_prompt(dialogue.messages[: dialogue.answers[turn]], dialogue.tools)

    def difference(self, dialogue: Dialogue, ids: Sequence[int]) -> Difference | None:
        """How the rendered dialogue's ids differ from these, which end with the last turn's output; None: not at all,
        but for the end of the last turn, where the model did not write it."""
        try:
            text = self._template.render(dialogue.messages, dialogue.tools, generation_prompt=False)
        except TemplateError:
            return "refused"
        rendered = [token for part in self._tokenizer.cut(text) for token in self._encode_part(part)]
        rest = rendered[len(ids) :]
        if rendered[: len(ids)] == ids and self._closing.endswith(self._tokenizer.decode(rest, skip_special=False)):
            return None
        return classify(self._tokenizer.decode(ids, skip_special=False), text, self._closing)

    def rewritten(self, dialogue: Dialogue) -> list[int]:
        """The turns at which the template shows those before otherwise than when the last of them had ended, such as
        without their reasoning; white space does not count. Empty where the template refuses the messages."""
        if not self._may_rewrite(dialogue.tools):
            return []
        try:
            return [
                turn
                for turn, (before, after) in enumerate(pairwise(dialogue.answers), 1)
                if not self._goes_on(dialogue, before, after)
            ]
        except TemplateError:
            return []

    @cached_property
    def _closing(self) -> str:
        return closing(self._template)

    def _may_rewrite(self, tools: Sequence[Mapping[str, Any]] | None) -> bool:
        has_tools = bool(tools)
        if has_tools not in self._rewrites:
            role = "tool" if self._template.takes_tool_role else "user"
            self._rewrites[has_tools] = rewriting(self._template, tools, role) is not None
        return self._rewrites[has_tools]

    def _goes_on(self, dialogue: Dialogue, before: int, after: int) -> bool:
        messages, tools = dialogue.messages, dialogue.tools
        ended = self._template.render(messages[: before + 1], tools, generation_prompt=False)
        prompt = self._template.render(messages[:after], tools, generation_prompt=True)
        ended = ended.rstrip().removesuffix(self._closing.strip())
        return _without_space(prompt).startswith(_without_space(ended))


def classify(recorded: str, rendered: str, closing: str) -> Difference:
    """The cause by which two texts of a dialogue differ; the `closing` of a turn at the end does not count."""
    ours, theirs = (text.rstrip().removesuffix(closing.strip()).rstrip() for text in (recorded, rendered))
    if ours == theirs:
        return "tokenization"
    for cause, alike in _ALIKE.items():
        ours, theirs = alike(ours), alike(theirs)
        if ours == theirs:
            return cause
    return "other"


def _without_space(text: str) -> str:
    return _SPACE.sub("", text)


def _with_plain_calls(text: str) -> str:
    return _CALL.sub(_plain_call, text)


def _plain_call(match: re.Match[str]) -> str:
    try:
        value = json.loads(match[1], strict=False)
        return json.dumps([value["name"], value.get("arguments", value.get("parameters"))], sort_keys=True)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return match[0]


def _without_reasoning(text: str) -> str:
    return _REASONING.sub("", text)


_ALIKE: Mapping[Difference, Callable[[str], str]] = {
    "whitespace": _without_space,
    "calls": _with_plain_calls,
    "reasoning": _without_reasoning,
}
