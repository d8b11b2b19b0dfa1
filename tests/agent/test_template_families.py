"""Histories under chat templates with the features of SmolLM2's, Qwen3's, Llama 3's and DeepSeek's."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from agent_models import demo_tokenizer, template
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.increment import Increments, rewriting
from concur_batch.agent.template import Message
from concur_batch.agent.transcript import Transcript

unhurried = settings(deadline=None, max_examples=60)

TEMPLATES = Path(__file__).parents[1] / "fixtures" / "templates"
# The tokens of each family beside those of the demo vocabulary, the first of Llama's and DeepSeek's their BOS.
TOKENS = {
    "smollm2": (),
    "qwen3": ("<think>", "</think>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "deepseek": (
        "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>",
        "<｜tool▁outputs▁begin｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁outputs▁end｜>",
    ),
}  # fmt: skip
ROLES = [("smollm2", "user"), *((name, role) for name in ("qwen3", "llama3", "deepseek") for role in ("tool", "user"))]
TOOLS = [{"type": "function", "function": {"name": "t", "description": "é", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "Count é😀."}
PROMPTS = [[USER], [{"role": "system", "content": "Be good."}, USER]]

PLAIN = st.characters(codec="utf-8", exclude_characters="<")
BLANKS = st.sampled_from(["", " ", "\n", "\n\n", "\t", "  \n", "\r\n", "\u2028", "\xa0"])
# As models speak, blank space at both ends included.
SAID = st.builds("{}{}{}".format, BLANKS, st.text(PLAIN, max_size=20), BLANKS)
# As tools answer: nothing at all, one line, several, text of other scripts, text that looks like the template's.
QUOTED = st.sampled_from([*(token for tokens in TOKENS.values() for token in tokens), "<|im_start|>", "<|im_end|>",
                          "<tool_response>", "<|eot", "_id|>", "\U0010fffd", "{{ bos_token }}"])  # fmt: skip
RETURNED = st.lists(st.one_of(BLANKS, QUOTED, st.text(max_size=12)), max_size=5).map("".join)


def conversations(said: st.SearchStrategy[str]) -> st.SearchStrategy[list[tuple[str, list[str]]]]:
    """Turns, each with the results of up to three calls."""
    return st.lists(st.tuples(said, st.lists(RETURNED, min_size=1, max_size=3)), min_size=1, max_size=4)


@cache
def family(name: str) -> Tokenizer:
    bos = {"bos_token": TOKENS[name][0]} if name in ("llama3", "deepseek") else {}
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return demo_tokenizer(source, *TOKENS[name], lines_apart=name != "smollm2", **bos)


def observation(contents: list[str], role: str) -> list[Message]:
    """Each result a message of its own, or all of them in one of the user's."""
    contents = contents if role == "tool" else ["\n".join(contents)]
    return [{"role": role, "name": "t", "content": content} for content in contents]


def history(
    tokenizer: Tokenizer,
    prompt: list[Message],
    turns: list[tuple[str, list[str]]],
    role: str,
    tools: list | None = None,
) -> tuple[Transcript, list[Message]]:
    """The transcript after these turns, each ended by the model itself; and the messages that it amounts to."""
    transcript = Transcript(tokenizer)
    transcript.start(prompt, tools)
    messages = list(prompt)
    for said, results in turns:
        transcript.generated([*tokenizer.encode_content(said), *tokenizer.closing_ids])
        observed = observation(results, role)
        transcript.observe(observed)
        messages += [{"role": "assistant", "content": said}, *observed]
    return transcript, messages


def whole_ids(tokenizer: Tokenizer, messages: list[Message], tools: list | None = None) -> list[int]:
    """The ids of the whole conversation rendered at once: the template's text by the tokenizer's own encoding, with
    what a content quotes of control tokens cut out before, and encoded as text."""
    control = re.compile("|".join(re.escape(tokenizer.decode([token], skip_special=False))
                                  for token in sorted(tokenizer.control_ids)) + "|\U0010fffd")  # fmt: skip
    cut: list[str] = []

    def mark(match: re.Match[str]) -> str:
        cut.append(match[0])
        return f"\ue000{len(cut) - 1}\ue001"

    marked = [message | {"content": control.sub(mark, message["content"])} for message in messages]
    text = tokenizer.template.render(marked, tools, generation_prompt=True)
    ids: list[int] = []
    for index, piece in enumerate(re.split("\ue000([0-9]+)\ue001", text)):
        ids += tokenizer.encode_content(cut[int(piece)]) if index % 2 else tokenizer.encode(piece)
    return ids


def opens_cleanly(tokenizer: Tokenizer, said: str) -> bool:
    """Whether the tokenizer keeps what is said apart from a line break before it, with which the opening may end."""
    return all(tokenizer.encode(lines + said) == tokenizer.encode(lines) + tokenizer.encode(said)
               for lines in ("\n", "\n\n"))  # fmt: skip


@pytest.mark.parametrize(("name", "role"), ROLES)
@pytest.mark.parametrize("prompt", PROMPTS, ids=["no system prompt", "system prompt"])
@unhurried
@given(turns=conversations(SAID))
def test_the_ids_are_those_of_the_whole_conversation(name, role, prompt, turns):
    tokenizer = family(name)
    if name == "llama3":  # trims what was said, see below
        turns = [(said.strip(), results) for said, results in turns]
    turns = [(said if opens_cleanly(tokenizer, said) else f"So {said}".strip(), results) for said, results in turns]
    transcript, messages = history(tokenizer, prompt, turns, role)
    assert transcript.ids.tolist() == whole_ids(tokenizer, messages)


REASONED = st.builds(
    "<think>\n{}\n</think>\n\n{}".format,
    st.text(PLAIN, max_size=20).map(lambda text: f"I see {text}.".replace("\n\n", "\n")),
    st.text(PLAIN, max_size=20).map(lambda text: text.lstrip("\n")),
)


@unhurried
@given(turns=st.lists(st.tuples(REASONED, st.lists(st.text(PLAIN), min_size=1, max_size=3)), min_size=1, max_size=4))
def test_reasoning_among_tool_calls_is_appended_only_in_qwen3(turns):
    tokenizer = family("qwen3")
    transcript = Transcript(tokenizer)
    transcript.start(PROMPTS[1], TOOLS)
    messages = list(PROMPTS[1])
    for said, results in turns:
        transcript.generated([*tokenizer.encode(said), *tokenizer.closing_ids])
        transcript.observe(observation(results, "tool"))
        messages += [{"role": "assistant", "content": said}, *observation(results, "tool")]
    text = tokenizer.template.render(messages, TOOLS, generation_prompt=True)
    assert transcript.ids.tolist() == tokenizer.encode(text)


@pytest.mark.parametrize(("name", "role"), ROLES)
@unhurried
@given(results=st.lists(RETURNED, min_size=1, max_size=3))
def test_a_result_puts_in_no_control_token_of_its_own(name, role, results):
    tokenizer = family(name)
    quoting, harmless = (
        [
            token
            for token in history(tokenizer, [USER], [("a", contents)], role)[0].ids
            if token in tokenizer.control_ids
        ]
        for contents in (results, ["x"] * len(results))
    )
    assert quoting == harmless


SHOWN = {
    ("smollm2", "user"): (
        "<|im_start|>system\nYou are a small model who helps.<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
        "<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\n\n o <|im_end|>\n<|im_start|>assistant\n"
    ),
    ("qwen3", "tool"): (
        "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\n<tool_response>\n"
        "\n</tool_response>\n<tool_response>\n o \n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    ),
    ("llama3", "tool"): (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday is 26 Jul 2024.\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\na"
        '<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n""<|eot_id|><|start_header_id|>ipython'
        '<|end_header_id|>\n\n" o "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'
    ),
    ("llama3", "user"): (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday is 26 Jul 2024.\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nu<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\na"
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\no<|eot_id|><|start_header_id|>assistant"
        "<|end_header_id|>\n\n"
    ),
    ("deepseek", "tool"): (
        "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜><｜tool▁outputs▁begin｜>"
        "<｜tool▁output▁begin｜><｜tool▁output▁end｜>\n"
        "<｜tool▁output▁begin｜> o <｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    ),
    ("deepseek", "user"): (
        "<｜begin▁of▁sentence｜><｜User｜>u<｜Assistant｜>a<｜end▁of▁sentence｜><｜User｜>\n o <｜Assistant｜>"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "role"), SHOWN)
def test_a_history_in_full(name, role):
    """One turn, then two results of which the first is empty."""
    tokenizer = family(name)
    transcript, _ = history(tokenizer, [{"role": "user", "content": "u"}], [("a", ["", " o "])], role)
    assert tokenizer.decode(transcript.ids.tolist(), skip_special=False) == SHOWN[name, role]


@pytest.mark.parametrize("name", TOKENS)
def test_a_turn_that_the_engine_cut_is_ended_as_the_template_ends_it(name):
    tokenizer = family(name)
    cut, ended = Transcript(tokenizer), Transcript(tokenizer)
    for transcript, closing in ((cut, []), (ended, tokenizer.closing_ids)):
        transcript.start([USER], None)
        transcript.generated([*tokenizer.encode("a"), *closing])
        transcript.observe(observation(["r"], "user"))
    assert cut.ids.tolist() == ended.ids.tolist()
    assert len(tokenizer.closing_ids) == 1


REASONING = "<think>\nwhy\n</think>\n\nso"
REASONING_IS_DROPPED = "earlier reasoning of the assistant is rewritten once a {} follows"
BLANKS_ARE_TRIMMED = "blank space around a turn of the assistant is rewritten once a {} follows"
USERS, TOOLS_RESULT = "user's message", "tool's result"
# By family and role of observations: what is told, a turn, and what the template leaves of it.
REWRITTEN = {
    # Nothing while only results follow; but an agent may be told that its action is malformed.
    ("qwen3", "tool"): (REASONING_IS_DROPPED.format(USERS), REASONING, REASONING),
    ("qwen3", "user"): (REASONING_IS_DROPPED.format(USERS), REASONING, "so"),
    ("llama3", "tool"): (BLANKS_ARE_TRIMMED.format(TOOLS_RESULT), " so\n", "so"),
    ("llama3", "user"): (BLANKS_ARE_TRIMMED.format(USERS), "\tso ", "so"),
    ("deepseek", "tool"): (REASONING_IS_DROPPED.format(TOOLS_RESULT), REASONING, "\n\nso"),
    ("deepseek", "user"): (REASONING_IS_DROPPED.format(USERS), REASONING, "\n\nso"),
}


def test_a_template_that_appends_only_is_told_apart():
    assert rewriting(family("smollm2").template, None, "user") is None


@pytest.mark.parametrize(("name", "role"), REWRITTEN)
def test_what_is_rewritten_is_told_and_the_history_keeps_what_the_engine_saw(name, role):
    told, said, left = REWRITTEN[name, role]
    tokenizer = family(name)
    assert rewriting(tokenizer.template, None, role) == told
    transcript = Transcript(tokenizer)
    transcript.start([USER], None)
    messages = [USER]
    for turn in range(2):
        seen = transcript.ids.tolist()
        sampled = [*tokenizer.encode(said), *tokenizer.closing_ids]
        transcript.generated(sampled)
        transcript.observe(observation([f"r{turn}"], role))
        assert transcript.ids[: len(seen) + len(sampled)].tolist() == seen + sampled
        messages += [{"role": "assistant", "content": said}, *observation([f"r{turn}"], role)]
    kept = tokenizer.decode(transcript.ids.tolist(), skip_special=False)
    assert kept.count(said) == 2
    assert tokenizer.template.render(messages, None, generation_prompt=True) == kept.replace(said, left)


def test_the_date_stands_still_and_increments_hold_none():
    made = template((TEMPLATES / "llama3.jinja").read_text(), bos_token="<bos>")
    texts = [made.render([USER], None, generation_prompt=True) for _ in range(2)]
    assert texts[0] == texts[1]
    assert "26 Jul 2024" in texts[0]
    assert "2024" not in Increments(made, None).text(observation(["r"], "tool"))
