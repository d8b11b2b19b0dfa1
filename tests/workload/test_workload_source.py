"""YAML as the core schema of 1.2 has it, with the line of every key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import complaints

from concur_batch.workload.source import Origin, read_yaml, read_yaml_value

texts = st.text(
    st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f", categories=["L", "P", "S", "N"])
)
scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts.filter(bool), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_json_is_read_as_json(value: Any) -> None:
    read = read_yaml_value(json.dumps(value, ensure_ascii=False), "x")
    assert read == value
    assert json.dumps(read) == json.dumps(value)  # 1 is not 1.0, nor true


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), values, min_size=1, max_size=6))
def test_every_key_has_the_line_it_was_written_in(blocks: dict[str, Any]) -> None:
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in blocks.items()]
    source = read_yaml("\n\n".join(lines), "w.yaml")
    for number, key in enumerate(blocks):
        assert source.origins[(key,)] == Origin("w.yaml", 2 * number + 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("2.0E+4", 20000.0),
        ("0x10", 16),
        ("0o17", 15),
        ("-7", -7),
        ("+7", 7),
        ("010", 10),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        (".Inf", float("inf")),
        ("on", "on"),
        ("no", "no"),
        ("12:30", "12:30"),
        ("2024-01-31", "2024-01-31"),
        ("1_000", "1_000"),
        ("None", "None"),
        ("~", None),
        ("", None),
        ("true", True),
        ("'5'", "5"),
        ("!!str 5", "5"),
    ],
)
def test_scalars_by_the_core_schema(text: str, value: Any) -> None:
    read = read_yaml_value(text, "x")
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: 1\nb:\n  c: 2\n  c: 3\na: 4\n", [
            "w.yaml:4: b.c: stands a second time, after line 3; keep one",
            "w.yaml:5: a: stands a second time, after line 1; keep one",
        ]),
        ("a: 1\nb: x: y\n", [
            "w.yaml:2: column 5: mapping values are not allowed here; put a text which holds `: ` in quotes, or mend "
            "the indentation"
        ]),
        ("a:\n\tb: 1\n", [
            "w.yaml:2: column 1: found character '\\t' that cannot start any token; indent with spaces"
        ]),
        ("a: 'open\n", [
            "w.yaml:2: column 1: found unexpected end of stream; mend the YAML there, or put the text in quotes"
        ]),
        ("a: *gone\n", [
            "w.yaml:1: column 4: found undefined alias 'gone'; put a text which starts with `*` in quotes"
        ]),
        ("a: !!python/object:os.system {}\n", [
            "w.yaml:1: column 4: the tag tag:yaml.org,2002:python/object:os.system means nothing here; mend the YAML "
            "there, or put the text in quotes"
        ]),
        ("a: !!int many\n", [
            "w.yaml:1: column 4: \"many\" is no int, or has too many digits; mend the YAML there, or put the text in "
            "quotes"
        ]),
        ('a: "x\\ud800"\n', [
            "w.yaml:1: column 4: the text holds half a surrogate pair; mend the YAML there, or put the text in quotes"
        ]),
        ('"\\udfff": 1\n', [
            "w.yaml:1: column 1: the text holds half a surrogate pair; mend the YAML there, or put the text in quotes"
        ]),
        ("[a]: 1\n", [
            "w.yaml:1: column 1: a block or a list stands as a key; mend the YAML there, or put the text in quotes"
        ]),
        ("a: 1\n---\nb: 2\n", [
            "w.yaml:2: column 1: but found another document; mend the YAML there, or put the text in quotes"
        ]),
        ("a: 1\nb: \x07\n", ["w.yaml:2: holds the character '\\x07', which YAML does not allow; delete it"]),
        ("", ["w.yaml: the file is empty; write a workload into it; see docs/workload.md"]),
        ("# nothing\n", ["w.yaml: the file is empty; write a workload into it; see docs/workload.md"]),
        ("- a\n", [
            "w.yaml:1: holds a list, not a block of keys; start with `name:`, `tasks:`, `model:` and `engine:`"
        ]),
        ("hello\n", [
            "w.yaml:1: holds one value, not a block of keys; start with `name:`, `tasks:`, `model:` and `engine:`"
        ]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_yaml(text: str, lines: list[str]) -> None:
    assert complaints(lambda: read_yaml(text, "w.yaml")) == lines


def test_an_alias_is_a_copy() -> None:
    assert read_yaml("a: &x {b: 1}\nc: *x\n", "w.yaml").value == {"a": {"b": 1}, "c": {"b": 1}}


def test_aliases_that_explode_or_recur_are_refused() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    [line] = complaints(lambda: read_yaml(bomb, "w.yaml"))
    assert "there are more than 10000 values, each alias counted as what it names" in line
    [line] = complaints(lambda: read_yaml("a: &a [*a]\n", "w.yaml"))
    assert "an alias stands within what it names" in line


def test_blocks_nested_too_deeply_are_refused() -> None:
    [line] = complaints(lambda: read_yaml("a: " + "[" * 1000 + "]" * 1000, "w.yaml"))
    assert "nested too deeply" in line
