"""An action as one fenced block: commands for bash, or the answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

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
    without_thinking,
)

# A line of three backticks or more, with or without a word after them, as in CommonMark.
_FENCE = re.compile(r"^ {0,3}(`{3,})([^`\r\n]*)\r?$", re.MULTILINE)
_SHELLS = ("bash", "sh", "shell")
_FORM = "Write exactly one block:\n```bash\ncommand\n```\nor, when you are done:\n```submit\nyour answer\n```"


@dataclass(frozen=True, slots=True)
class _Block:
    word: str  # after the opening fence, in lower case
    text: str | None  # None: not closed
    start: int  # of the opening fence


def parse_bash(text: str, complete: bool, specs: Specs) -> Action:
    """See `actions`. `complete`: the model ended the turn itself. Blocks of other languages before the action are
    just text."""
    stripped = without_thinking(text, _FENCE)
    if not complete:
        return Truncated()
    if stripped is None:
        return UNCLOSED_THINKING
    blocks = list(_blocks(stripped))
    index = next((index for index, block in enumerate(blocks) if block.word in (*_SHELLS, "submit")), None)
    if index is None:
        return Malformed(f"the reply has no block for bash. {_FORM}")
    block = blocks[index]
    if block.text is None:
        return Malformed(f"the block is not closed. {_FORM}")
    if index < len(blocks) - 1:
        # Also what a line of ``` among the commands looks like: it ended the block before its time.
        return Malformed(
            f"another fence follows the block. {_FORM}\nIf the commands themselves hold lines of ```, fence with ````."
        )
    if not block.text.strip():
        return Malformed(f"the block is empty. {_FORM}")
    if block.word == "submit" and "submit" not in specs:
        return Answer(block.text.strip())
    try:
        if block.word == "submit":
            call = read_call("submit", {"answer": block.text.strip()}, specs)
        else:
            call = read_call("bash", {"command": block.text}, specs)
    except ActionError as error:
        return Malformed(str(error))
    return Calls((call,), stripped[: block.start].strip())


def _blocks(text: str) -> Iterator[_Block]:
    """The outermost fenced blocks.

    A fence with a word, at least as long as the one around it, opens a block within the block (a script that writes a
    Markdown file); shorter fences are text.
    """
    opening: re.Match[str] | None = None
    lengths: list[int] = []
    for fence in _FENCE.finditer(text):
        length = len(fence[1])
        if opening is None:
            opening, lengths = fence, [length]
        elif length >= lengths[-1] and fence[2].strip():
            lengths.append(length)
        elif length >= lengths[-1]:
            lengths.pop()
            if not lengths:
                yield _Block(_word(opening), _inside(text, opening, fence.start()), opening.start())
                opening = None
    if opening is not None:
        yield _Block(_word(opening), None, opening.start())


def _word(fence: re.Match[str]) -> str:
    return next(iter(fence[2].lower().split()), "")


def _inside(text: str, opening: re.Match[str], end: int) -> str:
    """The lines between the fences, without the line break before the closing one."""
    return text[opening.end() + 1 : end].removesuffix("\n").removesuffix("\r")
