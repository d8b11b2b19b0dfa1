"""Nothing that a model or a tool wrote acts on a terminal or hides, and what is harmless stays as it is."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.report.printable import all_printable, one_line, printable

JOINERS = "\u200c\u200d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("10%\r20%\r\ndone", "10%␍20%\ndone"),
        ("\x9b2J", "\\x9b2J"),
        ("\x7f\x00", "␡␀"),
        ("a\u202eb\u2066c\ufeff", "a\\u202eb\\u2066c\\ufeff"),
        ("\U000e0041", "\\U000e0041"),  # tags, which spell out hidden text
        ("\ud800", "\\ud800"),
        ("a\tb\nc é 漢字 👩\u200d💻 \ufe0f", "a\tb\nc é 漢字 👩\u200d💻 \ufe0f"),
    ],
)
def test_what_acts_is_shown_by_a_sign(text: str, shown: str) -> None:
    assert printable(text) == shown


@settings(deadline=None)
@given(st.text(st.characters()) | st.text(st.sampled_from([chr(code) for code in range(0x300)])))
def test_no_control_and_nothing_invisible_is_left(text: str) -> None:
    shown = printable(text)
    assert not [sign for sign in shown if unicodedata.category(sign) in ("Cc", "Zl", "Zp", "Cs") and sign not in "\t\n"]
    assert printable(shown) == shown
    shown.encode()
    assert "\n" not in one_line(text)
    kept = [sign for sign in text if unicodedata.category(sign)[0] in "LMNPSZ" and sign not in "\u2028\u2029"]
    assert printable("".join(kept)) == "".join(kept) or any(0xE0000 <= ord(sign) <= 0xE0FFF for sign in kept)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda value: st.lists(value) | st.dictionaries(st.text(), value),
)


def texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else []


@settings(deadline=None, max_examples=40)
@given(JSON)
def test_every_text_of_an_object_is_made_printable(value: Any) -> None:
    shown = all_printable(value)
    assert all(printable(text) == text for text in texts(shown))
    if all(printable(text) == text for text in texts(value)):
        assert shown == value
