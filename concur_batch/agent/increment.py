"""What the chat template appends to a history: the end of the assistant's turn, the observation, the next opening."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from concur_batch.agent.template import MARK, ChatTemplate, Message, TemplateError, Tools

_Shape = tuple[tuple[str, str | None], ...]  # (role, name) of each message

# What templates look at in a content, beside the constants that they are written with.
_AWKWARD = ("", " ", "\n", "  both ends \n", '{"a": "b\\n"}', "[1]", "'", '"', "\\", "<b>&amp;", "{{ x }}", "é\u2028😀")

# What a turn of the assistant may be, for `rewriting`: bare, with reasoning before it, with blanks at both ends.
_SAID = {
    "a turn": "a0",
    "earlier reasoning": "<think>\nr\n</think>\n\na0",
    "blank space around a turn": " a0 \n",
}


class Increments:
    """The increments of one template, given the `tools` it is always rendered with.

    An increment is what follows the assistant's content when the template renders [user, assistant, observation...]
    with the next generation prompt. Where the template prints contents as they are, that is a fixed text around them,
    found once for each sequence of roles and names.
    """

    def __init__(self, template: ChatTemplate, tools: Tools | None) -> None:
        self._template = template
        self._tools = tools
        self._around = lru_cache(maxsize=1024)(self._find_around)
        self._verbatim = lru_cache(maxsize=64)(self._is_verbatim)

    def text(self, messages: Sequence[Message]) -> str:
        """The increment for the observation `messages`. Raises TemplateError where the template refuses them."""
        around = self._around(tuple((message["role"], message.get("name")) for message in messages))
        if around is None:
            return self._render(messages)
        pieces = [around[0]]
        for message, after in zip(messages, around[1:], strict=True):
            pieces += message["content"], after
        return "".join(pieces)

    def _render(self, messages: Sequence[Message]) -> str:
        # The context is fixed, so that its own mark is the first one.
        context = [{"role": "user", "content": "u"}, {"role": "assistant", "content": MARK}]
        text = self._template.render([*context, *messages], self._tools, generation_prompt=True)
        _, mark, increment = text.partition(MARK)
        if not mark:
            raise TemplateError("the template does not print the content of an assistant's message")
        return increment

    def _find_around(self, shape: _Shape) -> list[str] | None:
        """The texts before, between and after the contents; None if the template does not print them as they are."""
        if not self._verbatim(tuple(role for role, _ in shape)):
            return None
        around = self._render(_messages(shape, MARK)).split(MARK)
        return around if len(around) == len(shape) + 1 else None

    def _is_verbatim(self, roles: tuple[str, ...]) -> bool:
        """Whether contents stand in the text unaltered and alter nothing else.

        Tried with awkward contents, and with every string constant of the template alone, within a content and with the
        next constant at a content's ends (as in `startswith('<a>') and endswith('</a>')`), since those are what it can
        compare a content with.
        """
        shape = tuple((role, "t") for role in roles)
        around = self._render(_messages(shape, MARK)).split(MARK)
        constants = self._template.constants
        pairs = [f"{first}x{second}" for first, second in pairwise(constants)]
        contents = [*_AWKWARD, *constants, *(f"x{constant}x" for constant in constants), *pairs]
        return all(self._render(_messages(shape, content)) == content.join(around) for content in contents)


def closing(template: ChatTemplate) -> str:
    """What the template puts after the content of an assistant's turn, such as `<|im_end|>` and a newline."""
    context = [{"role": "user", "content": "u"}, {"role": "assistant", "content": MARK}]
    text = template.render(context, None, generation_prompt=False)
    if MARK not in text:
        raise TemplateError("the template does not print the content of an assistant's message")
    return text.partition(MARK)[2]


def rewriting(template: ChatTemplate, tools: Tools | None, observation_role: str) -> str | None:
    """How the template rewrites history, in one line; None if every turn only appends to it.

    Looked at are observations of that role, and the user's, in which an agent is told that its action is malformed.
    A history of token ids keeps what the engine saw and made, so a rewriting template does no harm to it; but the
    model then sees more, such as earlier reasoning, than a server which renders the whole conversation each turn
    would show it.
    """
    for role in dict.fromkeys((observation_role, "user")):
        for what, said in _SAID.items():
            if (change := _change(template, tools, role, said)) is not None:
                return f"{what} of the assistant is {change}"
    return None


def _change(template: ChatTemplate, tools: Tools | None, role: str, said: str) -> str | None:
    """What becomes of a turn that said this, and when; None if it stays."""
    observation = "a user's message" if role == "user" else "a tool's result"

    def render(*turns: str) -> str:
        messages = [{"role": "user", "content": "u"}]
        for index, turn in enumerate(turns):
            messages.append({"role": "assistant", "content": turn})
            messages.append({"role": role, "name": "t", "content": f"o{index}"})
        return template.render(messages, tools, generation_prompt=True)

    first, second, third = render(), render(said), render(said, "a1")
    if not second.startswith(first):
        return f"not opened by the generation prompt any more once {observation} follows"
    if not second.startswith(first + said):
        return f"rewritten once {observation} follows"
    return None if third.startswith(second + "a1") else f"rewritten once a turn after {observation} follows"


def _messages(shape: _Shape, content: str) -> list[Message]:
    return [{"role": role, "content": content} | ({} if name is None else {"name": name}) for role, name in shape]
