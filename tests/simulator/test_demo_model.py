"""The demo model's tokenizer and chat template, as committed."""

import json
from pathlib import Path

import jinja2.sandbox
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

DIRECTORY = Path(__file__).parents[2] / "workloads" / "demo_model"
TOKENIZER = Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))
CONFIG = json.loads((DIRECTORY / "tokenizer_config.json").read_text())
TEMPLATE = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
    CONFIG["chat_template"]
)
MARKS = [
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_response>",
    "\n",
    "  ",
    "\r\n",
    "\u00a0",
    "é",
    "\x00",
]


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(), st.sampled_from(MARKS))).map("".join))
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_tool_markup_survives_a_decoder_that_skips_special_tokens() -> None:
    ids = TOKENIZER.encode("<|im_start|><tool_call>x</tool_call><|im_end|>").ids
    assert TOKENIZER.decode(ids) == "<tool_call>x</tool_call>"


def test_sizes_and_special_ids() -> None:
    assert TOKENIZER.get_vocab_size() == 6144
    assert sum(path.stat().st_size for path in DIRECTORY.iterdir()) < 400_000
    for index, fields in CONFIG["added_tokens_decoder"].items():
        assert TOKENIZER.token_to_id(fields["content"]) == int(index)
    assert CONFIG["eos_token"] == "<|im_end|>"


ASSISTANT = {
    "role": "assistant",
    "content": "Look.",
    "tool_calls": [{"function": {"name": "bash", "arguments": {"command": "ls"}}}],
}


def test_a_whole_conversation() -> None:
    rendered = TEMPLATE.render(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Task t1"},
            ASSISTANT,
            {"role": "tool", "content": "a"},
            {"role": "tool", "content": "b"},
        ],
        tools=[{"type": "function", "function": {"name": "bash"}}],
        add_generation_prompt=True,
    )
    head, _, rest = rendered.partition("<|im_end|>\n")
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert '{"function": {"name": "bash"}, "type": "function"}\n</tools>' in head
    assert rest == (
        "<|im_start|>user\nTask t1<|im_end|>\n"
        "<|im_start|>assistant\nLook.\n"
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_conversation_is_the_sum_of_its_increments(cut: int) -> None:
    messages = [
        {"role": "user", "content": "Task t1"},
        ASSISTANT,
        {"role": "tool", "content": "a"},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "More."},
    ]
    whole = TEMPLATE.render(messages=messages)
    assert TEMPLATE.render(messages=messages[:cut]) + TEMPLATE.render(messages=messages[cut:]) == whole
