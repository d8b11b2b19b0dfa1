"""Trajectories told as messages: what a chat template takes, and nothing that the model did not say or see."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.agent.actions import Calls, parse
from concur_batch.agent.formats.hermes import before_calls
from concur_batch.agent.instructions import Instructions, read_instructions
from concur_batch.agent.template import ChatTemplate
from concur_batch.export.dialogue import Dialogues, prints_calls
from concur_batch.export.form import Unfit
from concur_batch.export.trajectory import Trajectory, Turn
from tests.agent.agent_models import ROOT, demo_tokenizer, template
from tests.agent.agent_templates import CHATML_ANY_ROLE, DROPS_REASONING
from tests.agent.rollout_desk import SUBMIT, TOKENIZER, WORK
from tests.export.stories import SPECS, story, telling
from tests.trace.trace_rows import plain_row
from tools_env.catalogue import CATALOGUE
from tools_env.spec import ToolResult

AGAIN = WORK.replace("1", "2")
BAD = "<tool_call>\n{nonsense\n</tool_call>"


async def test_calls_stand_apart_from_the_words_and_are_answered_by_their_ids() -> None:
    told = telling()[0].of(await story(f"<think>\nHm.\n</think>\n\nI work.\n{WORK}\n{AGAIN}", SUBMIT))
    assert told.tools is not None
    assert [tool["function"]["name"] for tool in told.tools] == ["work", "submit"]
    assert told.answers == [2, 5]
    system, user, first, one, two, last = told.messages
    assert system == {"role": "system", "content": "Be brief."}
    assert user == {"role": "user", "content": "Do it."}
    assert first == {
        "role": "assistant",
        "content": "<think>\nHm.\n</think>\n\nI work.",
        "tool_calls": [
            {"id": "t0000c000", "type": "function", "function": {"name": "work", "arguments": {"step": 1}}},
            {"id": "t0000c001", "type": "function", "function": {"name": "work", "arguments": {"step": 2}}},
        ],
    }
    assert (one["role"], one["tool_call_id"], one["name"]) == ("tool", "t0000c000", "work")
    assert (two["tool_call_id"], set(two)) == ("t0000c001", {"role", "name", "content", "tool_call_id"})
    # What the last turn's calls returned no model has seen.
    assert last["tool_calls"][0]["function"] == {"name": "submit", "arguments": {"answer": "42"}}
    # What the engine's stop token stands for is no content.
    assert "<|im_end|>" not in json.dumps(told.messages)


async def test_a_template_that_shows_no_calls_leaves_them_in_the_text() -> None:
    tokenizer = demo_tokenizer(CHATML_ANY_ROLE)
    assert not prints_calls(tokenizer.template)
    told = telling(tokenizer)[0].of(await story(f"I work.\n{WORK}", SUBMIT, tokenizer=tokenizer))
    system, _, first, seen, last = told.messages
    assert told.tools is None
    assert "<tools>" in system["content"]
    assert first == {"role": "assistant", "content": f"I work.\n{WORK}"}
    assert seen["role"] == "user" and seen["content"].startswith("<tool_response>\n")
    assert last == {"role": "assistant", "content": SUBMIT}


async def test_what_the_generation_prompt_opened_belongs_to_the_answer() -> None:
    tokenizer = demo_tokenizer(DROPS_REASONING)
    told = telling(tokenizer)[0].of(await story(f"Hm.</think>\n\n{WORK}", SUBMIT, tokenizer=tokenizer))
    assert told.messages[2]["content"] == f"<think>\nHm.</think>\n\n{WORK}"


async def test_a_malformed_turn_is_text_and_is_answered_as_it_was() -> None:
    told = telling()[0].of(await story(BAD, SUBMIT))
    _, _, bad, retry, last = told.messages
    assert bad == {"role": "assistant", "content": BAD}
    assert retry["role"] == "user" and "the JSON does not parse" in retry["content"]
    assert "tool_calls" in last


async def test_a_turn_that_was_cut_has_no_calls() -> None:
    """The other half of row 16 is tests/agent/test_rollout.py::test_a_truncated_action_is_never_executed."""
    for cut in (WORK[:-15], WORK):
        told = telling()[0].of(await story(WORK, (cut, "length")))
        assert told.messages[-1] == {"role": "assistant", "content": cut}


async def test_react_stays_text() -> None:
    said = 'Thought: I work.\nAction: work\nAction Input: {"step": 1}'
    trajectory = await story(said, "Final Answer: 42", format="react")
    told = telling(format="react")[0].of(trajectory)
    assert told.tools is None
    assert [message["role"] for message in told.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert told.messages[2]["content"] == said
    assert told.messages[3]["content"].startswith("Observation: ")


def by_hand(*rows: dict[str, Any], calls: Any = (), prompt: str | None = "Do it.") -> Trajectory:
    """One turn for each row, of which all but the last have these calls."""
    turns = []
    for number, row in enumerate(rows):
        filled = plain_row("turns", turn=number, output_message=None, finish_reason="stop", ids_estimated=False) | row
        ids = [filled.pop(name) for name in ("input_delta_ids", "output_ids")]
        turns.append(Turn(filled, *ids, None, calls if number + 1 < len(rows) else ()))
    return Trajectory("run", plain_row("agents", turns=len(turns), prompt=prompt), turns)


def test_bash_stays_text_and_its_results_have_their_exit_code() -> None:
    specs = [CATALOGUE["bash"], CATALOGUE["submit"]]
    dialogues = Dialogues(Instructions("bash", "", specs), TOKENIZER.template)
    call = parse("bash", "```bash\nfalse\n```", "stop", specs)
    assert isinstance(call, Calls)
    calls = [(call.calls[0], ToolResult("error", "no", exit_code=1))]
    ends = {"output_text": "```submit\n42\n```", "action": "calls", "finish_reason": "length"}
    told = dialogues.of(
        by_hand({"output_text": "```bash\nfalse\n```", "action": "calls"}, ends | {"action": "truncated"}, calls=calls)
    )
    assert told.messages[2] == {"role": "assistant", "content": "```bash\nfalse\n```"}
    assert told.messages[3] == {"role": "user", "content": "[exit code 1]\nno"}


def served(*messages: dict[str, Any], calls: Any = ()) -> Trajectory:
    actions = ["calls"] * (len(messages) - 1) + ["answer"]
    rows = [
        {"output_text": "", "output_message": orjson.dumps(message).decode(), "action": action}
        for message, action in zip(messages, actions, strict=True)
    ]
    return by_hand(*rows, calls=calls)


def test_a_chat_servers_messages_are_its_own_with_arguments_as_objects() -> None:
    asked = {"id": "call_9", "type": "function", "index": 0,
             "function": {"name": "work", "arguments": '{"step": 1}'}}  # fmt: skip
    said = {"role": "assistant", "content": None, "reasoning": "Hm.", "refusal": None, "tool_calls": [asked]}
    action = parse("hermes", WORK, "stop", SPECS)
    assert isinstance(action, Calls)
    trajectory = served(said, {"content": "42"}, calls=[(action.calls[0], ToolResult("ok", "done"))])
    told = telling()[0].of(trajectory)
    assert told.messages[2:] == [
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "call_9", "type": "function", "function": {"name": "work", "arguments": {"step": 1}}}
            ],
        },
        {"role": "tool", "content": "done", "tool_call_id": "call_9", "name": "work"},
        {"role": "assistant", "content": "42"},
    ]
    assert told.answers == [2, 4]


async def test_what_cannot_be_told_is_unfit() -> None:
    dialogues = telling()[0]
    trajectory = await story(WORK, SUBMIT)
    with pytest.raises(Unfit, match="no prompt on record"):
        dialogues.of(replace(trajectory, agent={**trajectory.agent, "prompt": None}))
    first, last = trajectory.turns
    other = replace(first, row={**first.row, "output_text": "Other words."})
    with pytest.raises(Unfit, match="read otherwise"):
        dialogues.of(replace(trajectory, turns=[other, last]))
    with pytest.raises(Unfit, match="calls are missing"):
        dialogues.of(replace(trajectory, turns=[replace(first, calls=()), last]))


def test_a_template_that_refuses_calls_shows_none() -> None:
    assert not prints_calls(template("{{ raise_exception('no') if messages[-1].tool_calls else messages[0].content }}"))
    assert prints_calls(TOKENIZER.template)
    assert not prints_calls(qwen3())


def qwen3() -> ChatTemplate:
    return template((ROOT / "tests/fixtures/templates/qwen3.jinja").read_text())


def test_instructions_come_back_from_json() -> None:
    told = Instructions("react", "Be brief.", list(CATALOGUE.values()))
    assert read_instructions(orjson.loads(orjson.dumps(told.to_json()))) == told


PIECES = (
    WORK,
    AGAIN,
    '<tool_call>{"name": "submit", "arguments": {"answer": "</think>"}}</tool_call>',
    "Words.",
    "<think>Hm.</think>",
    f"<think>{WORK}</think>",
    "</think>",
    "<tool_response>made up",
    "\n\n",
)


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
def test_the_text_before_the_calls_is_all_that_is_before_them(text: str) -> None:
    action = parse("hermes", text, "stop", SPECS)
    if not isinstance(action, Calls):
        return
    before = before_calls(text)
    rest = text.removeprefix(before)
    assert before + rest == text
    assert rest.startswith("<tool_call>")
    again = parse("hermes", rest, "stop", SPECS)
    assert isinstance(again, Calls)
    assert again.calls == action.calls
