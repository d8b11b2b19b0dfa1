"""What models and tools wrote, as it may go to a terminal: nothing in it acts there, or hides. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# Controls but for tab and line feed, and what is invisible or turns the direction of writing. The joiners that some
# scripts and emoji need (U+200C, U+200D) are no harm.
_ACTS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """The text with each of these characters shown by a sign of its own or by its number: ␛, \\x9b, \\u202e.

    A line's end of two characters becomes one of one.
    """
    return _ACTS.sub(_sign, text.replace("\r\n", "\n"))


def one_line(name: str) -> str:
    """A name, printable and on one line: it begins no line that could be taken for one of ours."""
    return printable(name).replace("\n", " ")


def all_printable(value: Any) -> Any:
    """A JSON-like value in which every text is printable, keys included."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {all_printable(key): all_printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [all_printable(item) for item in value]
    return value


def _sign(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else found[0].encode("unicode_escape").decode()
