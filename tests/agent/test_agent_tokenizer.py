"""Loading a model directory, and that quoted control tokens stay text."""

from __future__ import annotations

import json
import shutil

import pytest
import tokenizers
from agent_models import DEMO, MOMENT, demo_tokenizer, template
from agent_templates import CHATML_ANY_ROLE
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.tokenizer import TokenizerError, load_tokenizer

unhurried = settings(deadline=None)

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>"]
HOSTILE = st.lists(st.one_of(st.sampled_from([*CONTROLS, "<|im_", "end|>", "\U0010fffd", "0"]), st.text(max_size=5)))


@pytest.fixture
def directory(tmp_path):
    for path in DEMO.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


def edit_config(directory, **fields):
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_demo_model(demo):
    assert demo.eos_ids == {2}
    assert demo.closing_ids == [2]
    assert demo.encode("<|im_start|>user") == [1, *demo.encode_content("user")]
    assert demo.control_ids == set(range(7))


def test_round_trip_without_special_tokens(tokenizer):
    text = "plain é 😀 \n\n  x\ttab"
    assert tokenizer.decode(tokenizer.encode(text + "<|im_end|>")) == text
    assert tokenizer.decode(tokenizer.encode(text + "<|im_end|>"), skip_special=False) == text + "<|im_end|>"


def test_tags_of_actions_are_never_skipped():
    special = demo_tokenizer(CHATML_ANY_ROLE, "<think>", "</think>", "<|pad|>")
    ids = special.encode("<think>a</think><|pad|><tool_call>b<|im_end|>")
    assert special.decode(ids) == "<think>a</think><tool_call>b"


def test_every_file_that_names_an_end_token(directory):
    edit_config(directory, eos_token={"content": "<|im_end|>"})
    (directory / "generation_config.json").write_text('{"eos_token_id": [0, 2]}')
    (directory / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_start|>"}}')
    assert load_tokenizer(directory).eos_ids == {0, 1, 2}
    (directory / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert load_tokenizer(directory).eos_ids == {1, 2, 3}


def test_the_closing_token_of_the_template_ends_a_turn_too(directory):
    """Some models name <|endoftext|> as the end, while their template closes turns by another token."""
    edit_config(directory, eos_token="<|endoftext|>")
    assert load_tokenizer(directory).eos_ids == {0, 2}


def test_a_template_file_goes_first_and_named_ones_are_read(directory):
    named = [{"name": "default", "template": CHATML_ANY_ROLE}, {"name": "tool_use", "template": CHATML_ANY_ROLE + "t"}]
    edit_config(directory, chat_template=named)
    loaded = load_tokenizer(directory).template
    assert loaded.render([], [{}], generation_prompt=True).endswith("t")
    (directory / "chat_template.jinja").write_text(CHATML_ANY_ROLE + "f")
    assert load_tokenizer(directory).template.render([], None, generation_prompt=True).endswith("f")


def test_truncation_and_padding_of_the_file_are_off(directory):
    path = directory / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    definition["padding"] = {"strategy": {"Fixed": 512}, "direction": "Right", "pad_id": 0, "pad_type_id": 0}
    definition["padding"] |= {"pad_token": "<|endoftext|>", "pad_to_multiple_of": None}
    path.write_text(json.dumps(definition))
    loaded = load_tokenizer(directory)
    assert loaded.decode(loaded.encode("one two three four five six seven")) == "one two three four five six seven"
    assert len(loaded.encode("one")) < 10


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda d: (d / "tokenizer.json").unlink(), "no tokenizer.json; give the directory"),
        (lambda d: (d / "tokenizer.json").write_text("{}"), "tokenizer.json: not a tokenizer"),
        (lambda d: (d / "tokenizer_config.json").write_text("{"), "tokenizer_config.json: not JSON"),
        (lambda d: (d / "tokenizer_config.json").write_text("[]"), "tokenizer_config.json: not a JSON object"),
        (lambda d: (d / "tokenizer_config.json").unlink(), "no chat template; put chat_template.jinja there"),
        (lambda d: edit_config(d, chat_template="{% if %}"), "chat template: line 1"),
        (lambda d: edit_config(d, chat_template="nothing"), "does not print the content"),
        (lambda d: edit_config(d, eos_token="<eos>"), "'<eos>' is not in the vocabulary"),
        (lambda d: edit_config(d, eos_token=None, chat_template="{{ messages[-1].content }}"), "no eos_token"),
    ],
)
def test_bad_directories_are_told_in_one_line(directory, spoil, told):
    spoil(directory)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(directory)
    assert told in str(caught.value)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


@unhurried
@given(pieces=HOSTILE)
def test_content_never_becomes_a_control_token(demo, pieces):
    text = "".join(pieces)
    ids = demo.encode_content(text)
    assert demo.control_ids.isdisjoint(ids)
    assert demo.decode(ids, skip_special=False) == text


def test_the_words_around_a_quoted_control_token_are_encoded_as_ever(demo):
    word = demo.encode(" internationalization")
    assert demo.encode_content("<|im_end|> internationalization")[-len(word) :] == word


@unhurried
@given(text=st.text())
def test_content_that_quotes_nothing_is_encoded_as_anything_else(demo, text):
    if "<" not in text:
        assert demo.encode_content(text) == demo.encode(text)


def test_lone_surrogates_become_replacement_characters(demo):
    assert demo.decode(demo.encode("a\ud800b")) == "a\ufffdb"
    assert demo.decode(demo.encode_content("a\ud800<|im_end|>"), skip_special=False) == "a\ufffd<|im_end|>"


def chat(tokenizer: Tokenizer, *contents: str) -> list[int]:
    return tokenizer.encode_prompt([{"role": "user", "content": content} for content in contents], None).tolist()


@unhurried
@given(pieces=HOSTILE, more=HOSTILE)
def test_prompts_hold_only_the_template_s_control_tokens(tokenizer, pieces, more):
    contents = ["".join(pieces), "".join(more)]
    ids = chat(tokenizer, *contents)
    bare = chat(tokenizer, "", "")
    controls = [token for token in ids if token in tokenizer.control_ids]
    assert controls == [token for token in bare if token in tokenizer.control_ids]
    messages = [{"role": "user", "content": content} for content in contents]
    # A vocabulary may lack some bytes (SmolLM2's does), which then are lost in any text.
    kept = [tokenizer.decode(tokenizer.encode_content(content), skip_special=False) for content in contents]
    messages = [{"role": "user", "content": content} for content in kept]
    assert tokenizer.decode(ids, skip_special=False) == tokenizer.template.render(
        messages, None, generation_prompt=True
    )


PROMPTS = st.lists(st.sampled_from(["a", "b", " ", "\n", "<|im_"])).map("".join)


@unhurried
@given(prompts=st.lists(st.tuples(st.sampled_from(["", "You are\n a system", "You are"]), PROMPTS), max_size=8))
def test_prompts_that_begin_alike_keep_the_ids_of_the_whole_text(demo, prompts):
    """Whatever came before, and whatever beginning was found shared."""
    demo._head = None
    for system, user in prompts:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        text = demo.template.render(messages, None, generation_prompt=True)
        assert demo.encode_prompt(messages, None).tolist() == demo.encode(text)


def test_no_head_ends_where_a_token_takes_the_space_before_it():
    definition = json.loads((DEMO / "tokenizer.json").read_text())
    for token in definition["added_tokens"]:
        token["lstrip"] = True
    taking = Tokenizer(json.dumps(definition), template(CHATML_ANY_ROLE), [])
    for user in "ab":
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": user}]
        text = taking.template.render(messages, None, generation_prompt=True)
        assert taking.encode_prompt(messages, None).tolist() == taking.encode(text)


ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "special": True}


def test_a_vocabulary_that_reaches_its_own_control_tokens():
    """Unigram models hold `</s>` as a piece like any other, which the best segmentation then takes."""
    vocab = [("<unk>", 0.0), ("</s>", -1.0), *((character, -3.0) for character in "</s>abc\n ")]
    model = tokenizers.Tokenizer(tokenizers.models.Unigram(vocab, 0, byte_fallback=False))
    model.decoder = tokenizers.decoders.Fuse()
    definition = json.loads(model.to_str())
    definition["added_tokens"] = [{"id": 1, "content": "</s>", "normalized": False} | ADDED]
    source = "{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}"
    unigram = Tokenizer(json.dumps(definition), template(source), [])
    assert 1 in tokenizers.Tokenizer.from_str(json.dumps(definition)).encode("b</s>").ids
    ids = chat(unigram, "a</s>b</s></s>")
    assert ids.count(1) == 1
    assert ids[-1] == 1
    assert unigram.decode(ids, skip_special=False) == "a</s>b</s></s></s>"


def test_a_normalization_that_makes_control_tokens():
    """Fullwidth brackets fold to ASCII under NFKC, and added tokens may be looked for in the folded text."""
    definition = json.loads((DEMO / "tokenizer.json").read_text())
    definition["normalizer"] = {"type": "NFKC"}
    for token in definition["added_tokens"]:
        token["normalized"] = True
    folding = Tokenizer(json.dumps(definition), template(CHATML_ANY_ROLE), [])
    hostile = "\uff1c|im_end|\uff1e"
    assert 2 in folding.encode(hostile)
    ids = chat(folding, hostile)
    assert ids.count(2) == 1
    assert folding.decode(ids, skip_special=False).startswith("<|im_start|>user\n<|im_end|><|im_end|>")


def test_runs_of_spaces_among_the_added_tokens_are_ordinary_vocabulary():
    definition = json.loads((DEMO / "tokenizer.json").read_text())
    spaces = {"id": 6144, "content": "    ", "normalized": False} | ADDED | {"special": False}
    definition["added_tokens"].append(spaces)
    spacious = Tokenizer(json.dumps(definition), template("    {% if 1 %}    {% endif %}" + CHATML_ANY_ROLE), [])
    assert 6144 in spacious.encode_content("a    b")
    assert 6144 not in spacious.control_ids


def test_loading_fixes_the_moment(directory):
    edit_config(directory, chat_template=CHATML_ANY_ROLE + "{{ strftime_now('%Y') }}")
    assert load_tokenizer(directory, MOMENT).template.render([], None, generation_prompt=False) == "2024"


@unhurried
@given(text=HOSTILE.map("".join))
def test_the_parts_of_a_text_have_the_ids_of_the_whole(tokenizer, text):
    parts = tokenizer.cut(text)
    assert "".join(parts) == text
    assert [token for part in parts for token in tokenizer.encode(part)] == tokenizer.encode(text)
