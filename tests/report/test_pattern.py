"""What is searched for: a text as it is, or an expression between slashes; and the filter that goes before."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.report.pattern import Pattern, PatternError


@pytest.mark.parametrize(
    ("given_", "line", "spans"),
    [
        ("key(", "a Key( and key(", [(2, 6), (11, 15)]),  # small letters stand for capital ones
        ("Key(", "a Key( and key(", [(2, 6)]),
        ("a.b", "axb a.b", [(4, 7)]),
        ("/a.b/", "axb a.b", [(0, 3), (4, 7)]),
        (r"/\S+!/", "Hey! you", [(0, 4)]),  # an escape is no capital letter
        ("/^x/", "xx", [(0, 1)]),
        ("/x*/", "axx", [(1, 3)]),  # nothing found is not found
        ("//", "a // b", [(2, 4)]),  # as it is
        ("/", "a/b", [(1, 2)]),
    ],
)
def test_where_it_is_found(given_: str, line: str, spans: list[tuple[int, int]]) -> None:
    assert Pattern.of(given_).spans(line) == spans


def test_lines_are_looked_at_one_by_one() -> None:
    assert list(Pattern.of("/^b.*c$/").lines("a\nb c\nbc d\nb\nc")) == ["b c"]


@pytest.mark.parametrize("wrong", ["", "/(/", "/[z-a]/", "/(?<=a)b/"])  # the last: not for RE2
def test_what_is_no_pattern_is_told_in_a_line(wrong: str) -> None:
    with pytest.raises(PatternError) as told:
        Pattern.of(wrong)
    assert "\n" not in str(told.value)
    assert "give TEXT" in str(told.value)


ALPHABET = st.sampled_from(list("aAbB.*(\\/^$[ \n-é"))


PLAIN = st.text(ALPHABET, min_size=1, max_size=3)


@settings(deadline=None)
@given(PLAIN | PLAIN.map("/{}/".format), st.lists(st.text(ALPHABET, max_size=12), max_size=5))
def test_the_filter_leaves_out_no_text_in_which_a_line_is_found(searched: str, texts: list[str]) -> None:
    try:
        pattern = Pattern.of(searched)
    except PatternError:
        return
    table = pa.table({"text": pa.array(texts, pa.string())})
    kept = ds.dataset(table).to_table(filter=pattern.filter(pc.field("text")))["text"].to_pylist()
    assert {text for text in texts if list(pattern.lines(text))} <= set(kept)
    if "\n" not in searched and not searched.startswith("/"):
        assert set(kept) <= {text for text in texts if list(pattern.lines(text))}


def test_the_filter_finds_the_beginnings_of_lines() -> None:
    table = pa.table({"text": ["a\nb", "ab", "a b"]})
    kept = ds.dataset(table).to_table(filter=Pattern.of("/^b$/").filter(pc.field("text")))["text"].to_pylist()
    assert kept == ["a\nb"]
