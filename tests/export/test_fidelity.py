"""Messages against the recorded ids: rendered the same or not and why not, and where a template rewrites history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from concur_batch.agent.encoding import Tokenizer
from concur_batch.export.fidelity import classify
from concur_batch.export.form import Unfit
from concur_batch.export.messages import Messages
from tests.agent.agent_models import ROOT, demo_tokenizer
from tests.agent.agent_templates import CHATML_ANY_ROLE, DROPS_REASONING
from tests.agent.rollout_desk import SUBMIT, TOKENIZER, WORK
from tests.export.stories import retelling, story

QWEN3 = (ROOT / "tests/fixtures/templates/qwen3.jinja").read_text()
BAD = "<tool_call>\n{nonsense\n</tool_call>"
THINKS = "<think>\nHm.\n</think>\n\n"

# What the model writes, and how the template's rendering of it differs.
SAID: list[tuple[Any, str | None]] = [
    (f"I work.\n{WORK}", None),
    (f"{THINKS}{WORK}", "whitespace"),  # the template puts one line break before the calls, where here are two
    (f"I work. {WORK}", "whitespace"),
    (WORK.replace('": ', '":'), "whitespace"),
    (WORK.replace('"arguments"', '"parameters"'), "calls"),
    (WORK.replace("work", "w\\u006frk"), "calls"),
    (f"{WORK}\n{WORK}", "other"),  # the same call again counts once
    (f"{WORK}\n<tool_response>\nmade up", "other"),
    (BAD, "tokenization"),  # the correction quotes the tags, which the agent saw as text and not as control tokens
]


@pytest.mark.parametrize(("said", "expected"), SAID)
async def test_a_rendering_that_differs_is_counted_by_its_cause(said: str, expected: str | None) -> None:
    told = retelling()
    Messages(told).records(await story(said, SUBMIT))
    assert told.counts == {"rendered as recorded" if expected is None else f"rendered otherwise: {expected}": 1}


async def test_the_same_text_in_other_tokens_is_a_cause_of_its_own() -> None:
    """A model may sample a word letter by letter."""
    trajectory = await story((f"I work.\n{WORK}", "stop"), SUBMIT)
    first, second = trajectory.turns
    letters = [token for letter in "I work.\n" for token in TOKENIZER.encode(letter)]
    ids = [*letters, *TOKENIZER.encode(WORK)]
    assert TOKENIZER.decode(ids) == first.row["output_text"]
    told = len(first.input_delta_ids) + len(ids) + len(second.input_delta_ids)
    turns = [
        replace(first, output_ids=np.array(ids, np.int32)),
        replace(second, row={**second.row, "input_tokens": told}),
    ]
    telling = retelling()
    Messages(telling).records(replace(trajectory, turns=turns))
    assert telling.counts == {"rendered otherwise: tokenization": 1}


async def test_a_turn_that_was_cut_is_rendered_as_recorded_but_for_its_end() -> None:
    told = retelling()
    (record,) = Messages(told).records(await story(WORK, (WORK[:-15], "length")))
    assert told.counts == {"rendered as recorded": 1}
    assert record["truncated"]
    assert record["messages"][-1]["content"] == WORK[:-15]


def test_the_mildest_cause_that_explains_all_is_named() -> None:
    end = "<|im_end|>\n"
    call = '<tool_call>{"name": "a", "arguments": {"x": 1, "y": 2}}</tool_call>'
    turned = '<tool_call>{"arguments": {"y": 2, "x": 1}, "name": "a"}</tool_call>'
    assert classify(f"a{end}", "a", end) == "tokenization"
    assert classify("a b", f"a  b{end}", end) == "whitespace"
    assert classify(f"a  {call}", f"a {turned}", end) == "calls"
    assert classify(f"<think>x</think>a {call}", f"a{turned}", end) == "reasoning"
    assert classify("<think>x</think>a", "b", end) == "other"
    assert classify("<tool_call>{</tool_call>", "<tool_call>[]</tool_call>", end) == "other"


def roles(record: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message.get("weight")) for message in record["messages"]]


async def test_a_template_that_strips_reasoning_splits_the_messages_or_drops_them() -> None:
    """Row 15: the turns before are shown without their reasoning, so none is trained on but where it is the last."""
    tokenizer = demo_tokenizer(DROPS_REASONING)
    trajectory = await story(f"Hm.</think>\n\n{WORK}", f"So.</think>\n\n{SUBMIT}", tokenizer=tokenizer)
    told = retelling(tokenizer)
    first, second = Messages(told).records(trajectory)
    assert roles(first) == [("system", None), ("user", None), ("assistant", None)]
    assert roles(second) == [
        ("system", None), ("user", None), ("assistant", 0), ("tool", None), ("assistant", None),
    ]  # fmt: skip
    assert [record["segment"] for record in (first, second)] == [0, 1]
    assert told.counts == {"rendered otherwise: reasoning": 1, "history rewritten": 1, "segments of those": 2}
    with pytest.raises(Unfit, match="history rewritten"):
        Messages(retelling(tokenizer, "drop")).records(trajectory)


async def test_reasoning_that_a_template_keeps_until_the_next_question_splits_there_alone() -> None:
    tokenizer = demo_tokenizer(QWEN3)
    said = [f"{THINKS}{line}" for line in (WORK, BAD, SUBMIT)]  # what is malformed is asked for again by the user
    told = retelling(tokenizer)
    found = Messages(told).records(await story(*said, tokenizer=tokenizer))
    assert [[weight for role, weight in roles(record) if role == "assistant"] for record in found] == [
        [None, None], [0, 0, None],
    ]  # fmt: skip
    told = retelling(tokenizer)
    assert len(Messages(told).records(await story(*said[::2], tokenizer=tokenizer))) == 1
    assert told.counts == {"rendered as recorded": 1}


@pytest.mark.parametrize("tokenizer", [TOKENIZER, demo_tokenizer(CHATML_ANY_ROLE)])
async def test_a_template_that_rewrites_nothing_splits_nothing(tokenizer: Tokenizer) -> None:
    told = retelling(tokenizer)
    (record,) = Messages(told).records(await story(WORK, BAD, f"{THINKS}{WORK}", SUBMIT, tokenizer=tokenizer))
    assert record["segment"] == 0
    assert "history rewritten" not in told.counts


async def test_messages_that_the_template_refuses_are_counted() -> None:
    refuses = CHATML_ANY_ROLE.replace(
        "{% for m in messages %}",
        "{% for m in messages %}{% if m.content == 'Work.' %}{{ raise_exception('no') }}{% endif %}",
    )
    tokenizer = demo_tokenizer(refuses)
    told = retelling(tokenizer)
    Messages(told).records(await story("Work.", tokenizer=tokenizer))
    assert told.counts == {"rendered otherwise: refused": 1}
