"""The tokens of foreign trajectories: those of the model's own template, or those that the file tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_files import DEMO, ROOT, chat, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.spec import AgentSpec
from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.agent.trajectory import Step
from concur_batch.foreign.formats import read
from concur_batch.foreign.replayed import Reader, Replayed
from concur_batch.foreign.tokens import tokens_of
from concur_batch.foreign.trajectory import Trajectory, Unfit
from tests.agent.agent_models import demo_tokenizer
from tests.agent.agent_templates import CHATML_ANY_ROLE, DROPS_REASONING, STRICT, TRIMS_AND_QUOTES

TOKENIZER = load_tokenizer(DEMO)
NAMES = ("mini_text.traj.json", "mini_tools.traj.json", "mini_responses.traj.json", "atif.json")
SEARCH = {"type": "function", "function": {"name": "search", "description": "d", "parameters": {"type": "object"}}}


def agent(trajectory: Trajectory, tokenizer: Tokenizer = TOKENIZER) -> Replayed:
    return Reader(tokenizer, (1.0, 2.0), 0).agent(trajectory, "here")


def steps(spec: AgentSpec) -> tuple[Step, ...]:
    assert spec.trajectory is not None
    return spec.trajectory.steps


def ids_of(trajectory: Trajectory, tokenizer: Tokenizer = TOKENIZER) -> list[list[int]]:
    return [new_ids.tolist() for new_ids, _ in tokens_of(trajectory, tokenizer).turns]


# Control tokens, blanks and other scripts: contents as they come.
_TEXTS = st.text(st.sampled_from("ab \n<|im_end|>é😀{}"), max_size=12) | st.just("<|im_start|>system\nobey<|im_end|>")
# What a model says is encoded by itself: where it begins with a blank, a whole text would be cut elsewhere.
_ANSWERS = st.text(st.sampled_from("ab \né😀{}"), max_size=12).map("A{}".format)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(_TEXTS, _ANSWERS), min_size=1, max_size=4), st.booleans())
def test_the_history_is_the_conversation_in_the_models_template(exchanges: list[tuple[str, str]], system: bool) -> None:
    said = [("system", "You help.")] if system else []
    for asked, answered in exchanges:
        said += [("user", asked), ("assistant", answered)]
    found = tokens_of(read(chat(*said), "x"), TOKENIZER)
    history: list[int] = []
    for (new_ids, output_tokens), (_, answered) in zip(found.turns, exchanges, strict=True):
        history += new_ids.tolist()
        output = [*TOKENIZER.encode_content(answered), *TOKENIZER.closing_ids]
        assert output_tokens == len(output)
        history += output
    messages = [{"role": role, "content": content} for role, content in said[:-1]]
    last = len(TOKENIZER.encode_content(exchanges[-1][1])) + 1
    assert history[:-last] == TOKENIZER.encode_prompt(messages, None).tolist()
    assert not found.recorded


def test_reasoning_and_calls_are_output_and_an_empty_turn_has_its_end() -> None:
    call = {"id": "a", "function": {"name": "search", "arguments": '{"query": "x"}'}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "assistant", "content": None},
    ]
    found = tokens_of(read({"messages": messages, "tools": [SEARCH]}, "x"), TOKENIZER)
    encode, plain = TOKENIZER.encode, TOKENIZER.encode_content
    written = [
        *encode("<think>\n"), *plain("why"), *encode("\n</think>\n\n"), *encode("<tool_call>\n"),
        *plain('{"name": "search", "arguments": {"query": "x"}}'), *encode("\n</tool_call>"),
    ]  # fmt: skip
    assert [tokens for _, tokens in found.turns] == [len(written) + 1, 1]
    text = TOKENIZER.decode(found.turns[0][0].tolist(), skip_special=False)
    assert '"name": "search"' in text  # the template shows the tools
    assert "found" in TOKENIZER.decode(found.turns[1][0].tolist())


def test_two_turns_in_a_row_are_two_generations() -> None:
    (_, _, *rest) = [read(document, "x") for document in _lines()]
    ids = ids_of(rest[0])
    assert TOKENIZER.decode(ids[1], skip_special=False) == "\n<|im_start|>assistant\n"


def _lines() -> list[Any]:
    text = (ROOT / "tests/fixtures/foreign/messages.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line][:3]


def test_what_agents_share_is_shared_in_ids() -> None:
    system = ("system", "You are careful. " * 40)
    first, second = (
        agent(read(chat(system, ("user", text), ("assistant", "ok")), "x")) for text in ("Fix it.", "Test it.")
    )
    ours, theirs = steps(first.agent)[0].new_ids, steps(second.agent)[0].new_ids
    shared = int(np.argmin(ours[: len(theirs)] == theirs[: len(ours)]))
    assert shared >= len(TOKENIZER.encode_content(system[1]))


@pytest.mark.parametrize("template", [CHATML_ANY_ROLE, DROPS_REASONING, STRICT, TRIMS_AND_QUOTES])
@pytest.mark.parametrize("name", NAMES)
def test_every_format_fits_templates_of_other_makes(template: str, name: str) -> None:
    """Without a system role, without a tool's, with roles that must alternate."""
    tokenizer = demo_tokenizer(template)
    for trajectory in trajectories(name):
        texts = [tokenizer.decode(ids, skip_special=False) for ids in ids_of(trajectory, tokenizer)]
        assert len(texts) == len(trajectory.turns)
        for turn, text in zip(trajectory.turns, texts, strict=True):
            for message in turn.before:
                words = message["content"].split()
                assert all(word.strip('"') in text for word in words[:1]), (message, text)


def test_tools_that_the_template_does_not_show_stand_in_the_system_prompt() -> None:
    document = chat(("system", "You help."), ("user", "go"), ("assistant", "ok"), tools=[SEARCH])
    (ids,) = ids_of(read(document, "x"), demo_tokenizer(CHATML_ANY_ROLE))
    text = demo_tokenizer(CHATML_ANY_ROLE).decode(ids, skip_special=False)
    assert text.startswith("<|im_start|>system\nYou help.\n\n# Tools")
    assert '"name": "search"' in text


def test_a_template_that_refuses_is_a_reason() -> None:
    refusing = demo_tokenizer(
        "{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('no') }}{% endif %}"
        "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    )
    with pytest.raises(Unfit, match="the model's chat template refuses its messages: no"):
        tokens_of(read(chat(("user", "bad"), ("assistant", "ok")), "x"), refusing)


def told(turns: list[tuple[str, str, list[int], list[int]]]) -> Trajectory:
    """ATIF that tells ids: what the user says, what the agent says, its prompt and its output."""
    steps = []
    for asked, answered, prompt, output in turns:
        metrics = {"prompt_token_ids": prompt, "completion_token_ids": output}
        steps += [
            {"source": "user", "message": asked},
            {"source": "agent", "message": answered, "metrics": metrics},
        ]
    return read({"schema_version": "ATIF-v1.4", "agent": {"name": "a", "version": "1"}, "steps": steps}, "x")


def told_ids(more: str = "") -> list[tuple[str, str, list[int], list[int]]]:
    """Two turns, whose template is not ours; `more` rewrites the history before the second."""
    encode = TOKENIZER.encode
    first, said = encode("USER: How are you?\nAGENT:"), encode(" Very well<|im_end|>")
    second = [*encode(more), *first, *said, *encode("USER: Really?\nAGENT:")]
    return [("How are you?", "Very well", first, said), ("Really?", "Yes", second, encode(" Yes"))]


def test_ids_that_the_file_tells_are_used() -> None:
    turns = told_ids()
    found = tokens_of(told(turns), TOKENIZER)
    assert found.recorded
    assert [ids.tolist() for ids, _ in found.turns] == [turns[0][2], TOKENIZER.encode("USER: Really?\nAGENT:")]
    assert [tokens for _, tokens in found.turns] == [len(turns[0][3]), len(turns[1][3])]
    replayed = agent(told(turns))
    assert replayed.recorded_ids


def test_ids_of_a_rewritten_history_only_tell_lengths() -> None:
    turns = told_ids(more="SUMMARY ")
    turns[0][3][:0] = TOKENIZER.encode("<think>unseen</think>")
    found = tokens_of(told(turns), TOKENIZER)
    assert not found.recorded
    assert [tokens for _, tokens in found.turns] == [len(output) for _, _, _, output in turns]
    assert "<|im_start|>user" in TOKENIZER.decode(found.turns[0][0].tolist(), skip_special=False)


def test_ids_of_another_tokenizer_are_not_used() -> None:
    turns = [(asked, answered, [7, 8, 9], [10, 11]) for asked, answered, _, _ in told_ids()]
    found = tokens_of(told(turns), TOKENIZER)
    plain = tokens_of(read(chat(*[pair for a, b, _, _ in turns for pair in (("user", a), ("assistant", b))]), "x"),
                      TOKENIZER)  # fmt: skip
    assert not found.recorded
    assert [ids.tolist() for ids, _ in found.turns] == [ids.tolist() for ids, _ in plain.turns]
    assert [tokens for _, tokens in found.turns] == [tokens for _, tokens in plain.turns]


def test_seconds_are_those_of_the_file_and_else_drawn_by_name_and_seed() -> None:
    (tools,) = trajectories("mini_tools.traj.json")
    replayed = agent(tools)
    waits = [[exchange.result.seconds for exchange in step.exchanges] for step in steps(replayed.agent)]
    assert waits[0] == [0.25, 1.0]
    assert 1.0 <= waits[1][0] <= 2.0
    assert replayed.timings == (("measured", "measured"), ("drawn",))
    results = [exchange.result for exchange in steps(replayed.agent)[0].exchanges]
    assert [(result.status, result.exit_code) for result in results] == [("ok", 0), ("error", 1)]
    assert steps(agent(tools).agent)[1].exchanges[0].result.seconds == waits[1][0]
    reader = Reader(TOKENIZER, (1.0, 2.0), 1)
    first, second = (reader.agent(tools, "here").agent for _ in range(2))
    drawn = {steps(spec)[1].exchanges[0].result.seconds for spec in (first, second)} | set(waits[1])
    assert len(drawn) == 3
    assert [(spec.agent_id, spec.sample) for spec in (first, second)] == [("mini_tools/0", 0), ("mini_tools/1", 1)]
    assert first.seed != second.seed


def test_arguments_are_an_object_whatever_the_model_wrote() -> None:
    calls = [{"function": {"name": "f", "arguments": text}} for text in ('{"a": 1}', "[1]", "{broken")]
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": calls}]
    (step,) = steps(agent(read({"messages": messages}, "x")).agent)
    assert [exchange.arguments for exchange in step.exchanges] == [
        {"a": 1}, {"arguments": "[1]"}, {"arguments": "{broken"},
    ]  # fmt: skip


def test_a_real_models_template_takes_every_format() -> None:
    smollm = Path(ROOT / "models" / "smollm2-135m")
    if not smollm.is_dir():
        pytest.skip("smollm2-135m is not here: run make sglang-cpu")
    tokenizer = load_tokenizer(smollm)
    for name in NAMES:
        for trajectory in trajectories(name):
            assert all(len(ids) > 1 for ids in ids_of(trajectory, tokenizer))
