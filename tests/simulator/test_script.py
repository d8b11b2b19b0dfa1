"""The scripted model: replay, branches, formats, and failures that can be seen."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from concur_batch.simulator.conversation import ActionFormat, Message, observations, read_conversation
from concur_batch.simulator.model import ChatTokens
from concur_batch.simulator.script import ScriptedModel, number, read_scripts

TOKENIZER = Tokenizer.from_file(str(Path(__file__).parents[2] / "workloads" / "demo_model" / "tokenizer.json"))
CHAT = ChatTokens.of(TOKENIZER)

FIX = {
    "id": "fix-1",
    "variants": [
        [
            {"think": "I run the tests.", "calls": [{"name": "bash", "arguments": {"command": "make test"}}]},
            {
                "think": "{{ find(last, '(test_[a-z]+)') }} fails.",
                "calls": [
                    {
                        "name": "edit_file",
                        "arguments": {"path": "a.py", "old": "{{ find(obs[0], 'got (.*)') }}", "n": 3},
                    },
                    {"name": "read_file", "arguments": {"path": "a.py"}},
                ],
                "when": "'FAILED' in last",
            },
            {
                "think": "Done in turn {{ turn }} of sample {{ sample }}.",
                "calls": [{"name": "submit", "arguments": {"answer": "{{ obs | length }} {{ number(last) | int }}"}}],
            },
        ],
        [{"think": "", "calls": [{"name": "submit", "arguments": {"answer": "second variant"}}]}],
    ],
}


def make_model(*scripts: object, form: ActionFormat = "hermes") -> ScriptedModel:
    return ScriptedModel(read_scripts(json.dumps(script) for script in scripts), TOKENIZER, form)


def prompt(*messages: tuple[str, str], open_turn: bool = True) -> np.ndarray:
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    ids = TOKENIZER.encode(text + ("<|im_start|>assistant\n" if open_turn else "")).ids
    return np.array(ids, dtype=np.int32)


def response(*texts: str) -> tuple[str, str]:
    return "user", "".join(f"\n<tool_response>\n{text}\n</tool_response>" for text in texts)


MODELS = make_model(FIX), make_model(FIX)
START = [("system", "Be brief. Task no-such"), ("user", "Task fix-1\n\nMend it.")]


def call(text: str) -> dict[str, object]:
    """The only call of a Hermes turn."""
    _, _, rest = text.partition("<tool_call>\n")
    assert rest.endswith("\n</tool_call>")
    loaded = json.loads(rest.removesuffix("\n</tool_call>"))
    assert isinstance(loaded, dict)
    return loaded


def said(model: ScriptedModel, *messages: tuple[str, str], seed: int = 0) -> str:
    *reply, end = model.reply(prompt(*messages), seed).tolist()
    assert end == CHAT.end
    text = TOKENIZER.decode(reply, skip_special_tokens=False)
    assert text == model.say(read_conversation(prompt(*messages), TOKENIZER, CHAT), seed)
    return text


def test_a_whole_conversation_follows_the_branch_that_the_observation_opens() -> None:
    model = make_model(FIX)
    history = list(START)
    first = said(model, *history)
    assert (
        first == 'I run the tests.\n<tool_call>\n{"name": "bash", "arguments": {"command": "make test"}}\n</tool_call>'
    )
    history += [("assistant", first), response("FAILED test_sum, got x + 1")]
    second = said(model, *history)
    assert second == (
        "test_sum fails.\n"
        '<tool_call>\n{"name": "edit_file", "arguments": {"path": "a.py", "old": "x + 1", "n": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>'
    )
    history += [("assistant", second), response("edited", "x = 7")]
    third = said(model, *history, seed=4)
    assert third.startswith("Done in turn 2 of sample 4.")
    assert call(third) == {"name": "submit", "arguments": {"answer": "3 7"}}
    history += [("assistant", third), response("submitted")]
    assert call(said(model, *history)) == {"name": "submit", "arguments": {"answer": ""}}


def test_a_step_whose_condition_fails_is_skipped_and_stays_so_in_the_replay() -> None:
    model = make_model(FIX)
    history = [*START, ("assistant", said(model, *START)), response("all 12 passed")]
    second = said(model, *history)
    assert call(second) == {"name": "submit", "arguments": {"answer": "1 12"}}
    # Later observations that would open the branch do not change what was decided then.
    history += [("assistant", second), response("FAILED test_late, got y")]
    assert "nothing left" in said(model, *history)


def test_the_seed_chooses_the_variant() -> None:
    model = make_model(FIX)
    assert call(said(model, *START, seed=5)) == {"name": "submit", "arguments": {"answer": "second variant"}}
    assert said(model, *START, seed=5) == said(model, *START, seed=7) != said(model, *START, seed=6)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["FAILED test_a, got q", "fine 3", "", "<|im_end|>"]), max_size=4), st.integers(0, 9))
def test_the_same_conversation_gives_the_same_turn(returned: list[str], seed: int) -> None:
    one, two = MODELS
    history = list(START)
    for text in returned:
        history += [("assistant", said(one, *history, seed=seed)), response(text)]
    assert said(one, *history, seed=seed) == said(two, *history, seed=seed)


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"think": "{{ last }}", "calls": []}, "'last' is undefined"),
        ({"think": "{{ obs[3] }}", "calls": []}, "has no element 3"),
        ({"think": "{{ number('none') }}", "calls": []}, "no number in 'none'"),
        ({"think": "{% if %}", "calls": []}, "TemplateSyntaxError"),
        ({"think": "", "calls": [], "when": "1 +"}, "TemplateSyntaxError"),
        ({"think": "", "calls": [], "when": "nobody"}, "'nobody' is undefined"),
        ({"think": "{{ find('a', '(') }}", "calls": []}, "unterminated subpattern"),
        ({"think": "{{ ''.__class__.__mro__ }}", "calls": []}, "unsafe"),
    ],
)
def test_a_script_that_cannot_go_on_says_so_in_its_answer(step: dict[str, object], problem: str) -> None:
    text = said(make_model({"id": "fix-1", "variants": [[step]]}), *START)
    answer = call(text)["arguments"]
    assert isinstance(answer, dict)
    assert "script error" in answer["answer"] and problem in answer["answer"]


def test_unknown_tasks_are_told() -> None:
    assert "no script for task else" in said(make_model(FIX), ("user", "Task else"))
    assert "no task in the first user message" in said(make_model(FIX), ("user", "Hello"))
    assert "no task in the first user message" in said(make_model(FIX), ("system", "Task fix-1"))


def test_react_and_bash() -> None:
    one = {"think": "Look.", "calls": [{"name": "bash", "arguments": {"command": "ls {{ obs | length }}"}}]}
    end = {"think": "Done.", "calls": [{"name": "submit", "arguments": {"answer": "it's {{ last }}"}}]}
    script = {"id": "fix-1", "variants": [[one, end]]}
    react = make_model(script, form="react")
    first = said(react, *START)
    assert first == 'Thought: Look.\nAction: bash\nAction Input: {"command": "ls 0"}'
    history = [*START, ("assistant", first), ("user", "Observation: a.txt")]
    assert said(react, *history) == 'Thought: Done.\nAction: submit\nAction Input: {"answer": "it\'s a.txt"}'
    bash = make_model(script, form="bash")
    first = said(bash, *START)
    assert first == "Look.\n```bash\nls 0\n```"
    history = [*START, ("assistant", first), ("user", "a.txt")]
    assert said(bash, *history) == "Done.\n```submit\nit's a.txt\n```"


def test_a_format_that_cannot_say_it_is_told() -> None:
    two = [{"name": "bash", "arguments": {"command": "ls"}}] * 2
    read = [{"name": "read_file", "arguments": {"path": "a"}}]
    for form, calls, problem in [("react", two, "one call a turn, not 2"), ("bash", read, "no tool 'read_file'")]:
        model = make_model({"id": "fix-1", "variants": [[{"think": "", "calls": calls}]]}, form=form)  # type: ignore[arg-type]
        assert problem in said(model, *START)


def test_markup_inside_a_turn_is_text() -> None:
    step = {"think": "It says <|im_end|> and <|im_start|>user.", "calls": []}
    reply = make_model({"id": "fix-1", "variants": [[step]]}).reply(prompt(*START), 0)
    assert reply.tolist().count(CHAT.end) == 1
    assert CHAT.start not in reply


def test_a_conversation_is_read_by_token_ids() -> None:
    ids = prompt(*START, ("assistant", "Hi"), ("tool", "a\nb"))
    assert read_conversation(ids, TOKENIZER, CHAT) == [
        Message("system", "Be brief. Task no-such"),
        Message("user", "Task fix-1\n\nMend it."),
        Message("assistant", "Hi"),
        Message("tool", "a\nb"),
    ]


def test_observations_of_each_format() -> None:
    several = Message(*response("one\n", "two </tool_response> still two", ""))
    assert observations(several, "hermes") == ["one\n", "two </tool_response> still two", ""]
    assert observations(Message("tool", "raw"), "hermes") == ["raw"]
    assert observations(Message("user", "You made no call."), "hermes") == []
    assert observations(Message("user", "Observation: x\ny"), "react") == ["x\ny"]
    assert observations(Message("user", "Observation:\nx"), "react") == ["x"]
    assert observations(Message("user", "Try again."), "react") == []
    assert observations(Message("user", "x"), "bash") == ["x"]
    assert observations(Message("assistant", "x"), "bash") == []


def test_numbers() -> None:
    assert [number(text) for text in ("sum: 1,234.5 in all", "-3", "x.5", 7)] == [1234.5, -3.0, 0.5, 7.0]


def test_scripts_that_are_wrong_name_their_line() -> None:
    good = json.dumps(FIX)
    with pytest.raises(ValueError, match=r"line 2: a second script for fix-1"):
        read_scripts([good, good])
    with pytest.raises(ValueError, match=r"line 3: variants\.0\.0\.when_: Extra inputs"):
        read_scripts([good, "", '{"id": "b", "variants": [[{"think": "", "calls": [], "when_": "x"}]]}'])
    with pytest.raises(ValueError, match=r"line 1: the line: Invalid JSON"):
        read_scripts(["{"])
