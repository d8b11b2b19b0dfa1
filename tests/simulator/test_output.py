"""Pure parts of the server: what a request will say, how it is spelled out, how calls and chats are read."""

import json
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_server import MODEL, TOKENIZER

from concur_batch.hub.directory import template_sources, template_variables
from concur_batch.hub.environment import template_environment
from concur_batch.simulator.ask import BadRequest, Sampling
from concur_batch.simulator.calls import CallReader, ParsedCall, read_calls
from concur_batch.simulator.chat import ChatModel, ChatScript, example
from concur_batch.simulator.openai_ask import OpenaiAsk, read_chat, read_completion
from concur_batch.simulator.output import Output, Speller, decide
from concur_batch.simulator.prompt import ChatPrompt
from concur_batch.simulator.request import TokenIds

END = TOKENIZER.token_to_id("<|im_end|>")
VOCABULARY = TOKENIZER.get_vocab_size()
PROMPT = ChatPrompt(template_environment(datetime(2026, 1, 1)), template_sources(MODEL), template_variables(MODEL))
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=40)


def ids(text: str) -> TokenIds:
    return np.array(TOKENIZER.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def decided(text: str, limit: int = 1000, **sampling: Any) -> Output:
    reply = np.append(ids(text), np.int32(END))
    return decide(reply, Sampling(limit, **sampling), limit, END, TOKENIZER)


def test_the_models_own_end_ends_an_output_and_is_not_shown() -> None:
    output = decided("all of it")
    assert (output.text, output.matched) == ("all of it", END)
    assert output.ids[-1] == END


def test_a_limit_comes_before_what_it_cuts_off() -> None:
    output = decided("one two three four", limit=2)
    assert (len(output.ids), output.matched) == (2, None)
    assert output.text == TOKENIZER.decode(ids("one two three four")[:2].tolist())


@pytest.mark.parametrize(("keep", "shown"), [(False, "It is do"), (True, "It is done.")])
def test_a_stop_string_ends_the_text_where_it_begins_and_the_tokens_where_it_is_complete(
    keep: bool, shown: str
) -> None:
    output = decided("It is done. Or is it done.?", stop=("??", "ne."), keep_stop=keep)
    assert (output.text, output.matched) == (shown, "ne.")
    assert TOKENIZER.decode(output.ids.tolist()) == "It is done."


def test_a_stop_token_ends_an_output_unless_no_token_may() -> None:
    said = ids("It is done. Or is it done.?").tolist()
    place = said.index(said[3])
    output = decided("It is done. Or is it done.?", stop_token_ids=frozenset({said[3]}))
    assert (output.ids.tolist(), output.matched) == (said[: place + 1], said[3])
    forced = decided("It is done.", limit=50, ignore_eos=True, stop_token_ids=frozenset({said[3]}))
    assert (len(forced.ids), forced.matched, END in forced.ids) == (50, None, False)


@given(
    text=TEXTS, stop=st.one_of(st.none(), st.text("abc .", min_size=1, max_size=3)), counts=st.lists(st.integers(0, 60))
)
def test_a_text_only_grows_and_ends_as_the_whole(text: str, stop: str | None, counts: list[int]) -> None:
    output = decided(text, stop=() if stop is None else (stop,))
    speller = Speller(output, TOKENIZER)
    shown = ""
    for count in sorted(min(count, len(output.ids)) for count in counts):
        longer = speller.upto(count)
        assert longer.startswith(shown) and output.text.startswith(longer)
        shown = longer
    assert speller.upto(len(output.ids)) == output.text
    if stop is not None:
        assert stop not in output.text


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["look", "move", "unknown"]), st.dictionaries(st.text("xy<>/", max_size=4), TEXTS, max_size=2)
    ),
    max_size=3,
)


@given(said=st.text("ab<tool_c>l \n", max_size=12), calls=CALLS, cuts=st.sets(st.integers(0, 200)))
def test_calls_are_read_alike_whole_and_in_pieces(
    said: str, calls: list[tuple[str, dict[str, str]]], cuts: set[int]
) -> None:
    blocks = [f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>" for name, given in calls]
    text = said + "\n".join(blocks)
    whole_text, whole = read_calls(text, {"look", "move"})
    reader = CallReader({"look", "move"})
    heard = ""
    came: list[ParsedCall] = []
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    for start, end in pairwise(places):
        piece, complete = reader.feed(text[start:end])
        heard += piece
        came.extend(complete)
    heard += reader.finish()
    assert came == whole
    if calls and "</tool_call>" not in str(calls):
        assert [call.name for call in whole] == [name for name, _ in calls if name != "unknown"]
        assert (heard, whole_text) == (said, said.strip())
    if not calls:
        assert heard == whole_text == said


def test_a_call_that_is_cut_off_or_no_json_is_dropped() -> None:
    assert read_calls('Look.\n<tool_call>\n{"name": "look", "argum', {"look"}) == ("Look.", [])
    text = '<tool_call>nonsense</tool_call> and <tool_call>{"name": "look", "arguments": {"a": "é"}}</tool_call>'
    assert read_calls(text, {"look"}) == ("", [ParsedCall("look", '{"a": "é"}')])


def test_an_example_is_of_the_schemas_kind() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 3},
            "unit": {"enum": ["C", "F"]},
            "place": {"properties": {"x": {"type": "number"}, "y": {}}, "required": ["x"]},
            "more": {"type": ["array", "null"]},
            "unneeded": {"type": "string"},
        },
        "required": ["city", "days", "unit", "place", "more", "unheard"],
    }
    assert example(schema) == {
        "city": "simulated", "days": 3, "unit": "C", "place": {"x": 1.0}, "more": [], "unheard": "simulated",
    }  # fmt: skip


def test_the_chat_model_says_what_it_is_and_calls_what_it_is_offered() -> None:
    model = ChatModel(ChatScript(output_words=(3, 3)), TOKENIZER, END)
    prompt = ids("Anything?")
    said = model.reply(prompt, 1)
    assert TOKENIZER.decode(said.tolist()).startswith("This answer is simulated:")
    assert said[-1] == END and len(said) == len(ids("This answer is simulated:")) + 3 + 1
    assert np.array_equal(said, model.reply(prompt, 1))
    assert not np.array_equal(said, model.reply(prompt, 2))
    called = TOKENIZER.decode(model.reply(prompt, 1, [{"name": "look"}, {"name": "move"}]).tolist())
    assert read_calls(called, {"look", "move"}) == ("", [ParsedCall("look", "{}")])
    for parameters in (None, 5, {"required": 5}, {"type": "string"}, {"properties": [], "required": []}):
        called = TOKENIZER.decode(model.reply(prompt, 1, [{"name": "look", "parameters": parameters}]).tolist())
        assert read_calls(called, {"look"})[1] == [ParsedCall("look", "{}")]


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("look", "move")
]
USER = {"role": "user", "content": "Go."}


def chat(messages: list[dict[str, Any]] | None = None, parses: bool = True, **body: Any) -> OpenaiAsk:
    return read_chat({"messages": messages or [USER], **body}, PROMPT, TOKENIZER, VOCABULARY, parses, None)


def test_a_chat_is_rendered_by_the_template_of_the_directory() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a": "b"}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a wall"},
    ]
    assert TOKENIZER.decode(chat(messages).ask.input_ids.tolist(), skip_special_tokens=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "look", "arguments": {"a": "b"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na wall\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("fields", "offered", "read"),
    [
        ({}, ["look", "move"], True),
        ({"tool_choice": "none"}, [], False),
        ({"tool_choice": {"type": "function", "function": {"name": "move"}}}, ["move"], True),
        ({"messages": [USER, {"role": "tool", "content": "a wall"}]}, [], True),
        (
            {"messages": [USER, {"role": "tool", "content": "a wall"}], "tool_choice": "required"},
            ["look", "move"],
            True,
        ),
        ({"parses": False}, [], False),
    ],
)
def test_which_functions_may_be_called(fields: dict[str, Any], offered: list[str], read: bool) -> None:
    asked = chat(tools=TOOLS, **fields)
    assert [function["name"] for function in asked.ask.offered] == offered
    assert asked.functions == (frozenset({"look", "move"}) if read else frozenset())


@pytest.mark.parametrize(
    ("fields", "limit"), [({}, None), ({"max_tokens": 7}, 7), ({"max_completion_tokens": 8, "max_tokens": 7}, 8)]
)
def test_how_much_a_chat_may_say(fields: dict[str, Any], limit: int | None) -> None:
    assert chat(**fields).ask.sampling.max_new_tokens == limit


def test_a_completion_may_say_sixteen_tokens_and_takes_text_or_ids() -> None:
    one, two, three = (
        read_completion({"prompt": prompt, "seed": 3}, TOKENIZER, VOCABULARY, 1).ask
        for prompt in ("a word", ids("a word").tolist(), ["a word"])
    )
    assert one.sampling == Sampling(16, seed=3) and one.rank == 1
    assert one.input_ids.tolist() == two.input_ids.tolist() == three.input_ids.tolist() == ids("a word").tolist()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": "hello"}, "Messages cannot be empty."),
        ({"messages": ["hello"]}, "messages.0: must be an object with a `role`"),
        (
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.1.content: .* text only",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
            "messages.0.tool_calls",
        ),
        ({"tools": [{"type": "function"}]}, "tools.0: must be a function with a name"),
        ({"tool_choice": "required"}, "Tools cannot be empty"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "fly"}}}, "Tool 'fly' not found"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "`tool_choice` must be"),
        ({"n": 2}, "does not support `n` above 1"),
        ({"logprobs": True}, "does not support `logprobs`"),
        ({"response_format": {"type": "json_object"}}, "does not support `response_format`"),
        ({"max_tokens": "9"}, "must be an integer"),
        ({"model": 5}, "`model`, `rid` and `session_id` must be strings"),
        ({"session_id": 5}, "`model`, `rid` and `session_id` must be strings"),
        ({"stream_options": "usage"}, "`stream_options` must be an object"),
        ({"chat_template_kwargs": []}, None),
        ({"chat_template_kwargs": [1]}, "`chat_template_kwargs` must be an object"),
    ],
)
def test_what_a_chat_is_refused_for(fields: dict[str, Any], message: str | None) -> None:
    if message is None:
        chat(**fields)
        return
    with pytest.raises(BadRequest, match=message):
        chat(**fields)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "Prompt cannot be empty"),
        (["a", "b"], "one prompt a request"),
        ([VOCABULARY], "within the vocabulary"),
        (5, "must be"),
    ],
)
def test_what_a_completion_is_refused_for(prompt: object, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        read_completion({"prompt": prompt}, TOKENIZER, VOCABULARY, None)


def test_a_template_that_refuses_is_a_bad_request() -> None:
    environment = template_environment(datetime(2026, 1, 1))
    refusing = ChatPrompt(environment, {"default": "{{ raise_exception('no roles') }}"}, {})
    with pytest.raises(BadRequest, match="no roles"):
        refusing.render({"messages": [USER]}, [])
    with pytest.raises(BadRequest, match="has no chat template"):
        ChatPrompt(environment, {}, {}).render({"messages": [USER]}, [])
