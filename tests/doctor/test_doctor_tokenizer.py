"""The tokenizer's checks: the demo model's is sound, altered ones are not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.doctor.tokenizer import (
    check_round_trip,
    check_template,
    check_vocabulary,
    compare_counts,
    compare_ids,
    inspect_tokenizer,
    probe_texts,
)
from tests.doctor.doctor_servers import MODEL


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


def with_template(model: Path, template: str) -> Path:
    (model / "chat_template.jinja").write_text(template)
    return model


def test_a_sound_model() -> None:
    found = list(inspect_tokenizer(MODEL, load_tokenizer(MODEL), None, "user"))
    assert [(f.name, f.verdict) for f in found] == [
        ("vocabulary", "ok"),
        ("round trip", "ok"),
        ("end of turn", "ok"),
        ("chat template", "ok"),
    ]
    assert found[2].seen == "<|im_end|>"


def test_a_vocabulary_that_the_model_does_not_have(model: Path) -> None:
    size = int(check_vocabulary(model).seen.split()[0])
    for known, verdict in ((size, "ok"), (size - 1, "failure")):
        (model / "config.json").write_text(json.dumps({"vocab_size": known}))
        assert check_vocabulary(model).verdict == verdict
    for text in ("{", "[]", "{}"):
        (model / "config.json").write_text(text)
        assert check_vocabulary(model).verdict == "ok"


def test_a_tokenizer_that_lowers_its_text(model: Path) -> None:
    fields = json.loads((model / "tokenizer.json").read_text())
    fields["normalizer"] = {"type": "Lowercase"}
    (model / "tokenizer.json").write_text(json.dumps(fields))
    found = check_round_trip(load_tokenizer(model))
    assert found.verdict == "warning"
    assert "'the run has ended; 3 of 17 files differ.'" in found.seen


def test_a_template_that_rewrites_history(model: Path) -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{{ m.content.split('</think>')[-1] if not loop.last else m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    found = check_template(load_tokenizer(with_template(model, template)), None, "user")
    assert (found.verdict, "reasoning" in found.seen) == ("warning", True)


@pytest.mark.parametrize(
    ("family", "role", "seen"),
    [
        ("smollm2", "user", None),
        ("qwen3", "tool", "reasoning"),
        ("llama3", "tool", "blank"),
        ("deepseek", "tool", "reasoning"),
    ],
)
def test_templates_of_every_family(model: Path, family: str, role: str, seen: str | None) -> None:
    template = (Path(__file__).parents[1] / "fixtures/templates" / f"{family}.jinja").read_text(encoding="utf-8")
    found = check_template(load_tokenizer(with_template(model, template)), None, role)
    if seen is None:
        assert (found.verdict, found.seen) == ("ok", "every turn appends to the history")
    else:
        assert (found.verdict, seen in found.seen) == ("warning", True)
        assert "keeps what the engine saw" in found.mend


def test_a_template_that_refuses_a_second_turn(model: Path) -> None:
    template = (
        "{% if messages|length > 2 %}{{ raise_exception('one turn only') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    )
    found = check_template(load_tokenizer(with_template(model, template)), None, "user")
    assert (found.verdict, found.seen) == ("failure", "one turn only")


def test_a_dialogue_with_control_tokens_is_among_what_is_compared() -> None:
    tokenizer = load_tokenizer(MODEL)
    assert not tokenizer.control_ids.isdisjoint(probe_texts(tokenizer)[-1][1])


_ids = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(st.lists(_ids, min_size=1, max_size=5), st.none() | st.integers(0, 50), st.data())
def test_ids_are_the_same_but_for_a_bos(ours: list[list[int]], bos: int | None, data: st.DataObject) -> None:
    texts = [(str(number), ids) for number, ids in enumerate(ours)]
    theirs = [([] if bos is None else [bos]) + ids for ids in ours]
    assert compare_ids(texts, theirs).verdict == "ok"
    assert compare_counts(texts, [len(ids) for ids in theirs]).verdict == "ok"
    altered = data.draw(st.integers(0, len(ours) - 1))
    theirs[altered][-1] += 1
    found = compare_ids(texts, theirs)
    assert found.verdict == "failure"
    assert found.seen == f"1 of {len(ours)} texts have other ids in the engine: {str(altered)!r}"


def test_two_tokens_more_are_no_bos() -> None:
    texts = [("a", [1, 2]), ("b", [3])]
    assert compare_ids(texts, [[0, 0, 1, 2], [0, 0, 3]]).verdict == "failure"
    assert compare_ids(texts, [[0, 1, 2], [3]]).verdict == "failure"
    assert compare_ids(texts, [[0, 1, 2], [9, 3]]).verdict == "failure"
    assert compare_ids(texts, [[1], [3]]).verdict == "failure"
    assert compare_counts(texts, [4, 3]).verdict == "failure"
    assert compare_counts(texts, [3, 1]).verdict == "failure"
