"""The formats of messages: what a record of each holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.instructions import Instructions
from concur_batch.export.atif import Atif
from concur_batch.export.completion import PromptCompletion
from concur_batch.export.messages import Messages
from concur_batch.export.sharegpt import ShareGpt
from concur_batch.export.tokens import Tokens
from concur_batch.export.trajectory import Trajectory
from tests.agent.agent_models import demo_tokenizer
from tests.agent.agent_templates import DROPS_REASONING
from tests.agent.rollout_desk import CONFIG, SUBMIT, TOKENIZER, WORK
from tests.export.stories import SPECS, retelling, story, telling

AGAIN = WORK.replace("1", "2")
BAD = "<tool_call>\n{nonsense\n</tool_call>"


async def long_story() -> Trajectory:
    """Two calls, words and a call, something malformed, the answer."""
    return await story(f"{WORK}\n{AGAIN}", f"I work.\n{WORK}", BAD, SUBMIT)


async def test_messages_have_the_tools_beside_them_and_say_where_they_are_from() -> None:
    form = Messages(retelling())
    (record,) = form.records(await long_story())
    assert set(record) == set(form.schema.names)
    assert (record["task_id"], record["reward"], record["end_reason"]) == ("t", 1.0, "submit")
    assert [tool["function"]["name"] for tool in record["tools"]] == ["work", "submit"]
    assert ["tool_calls" in message for message in record["messages"]].count(True) == 3
    assert all(None not in message.values() for message in record["messages"])
    assert not {"prompt", "completion", "text"} & set(record)  # by which TRL would take it for another type


async def test_a_completion_is_one_turn_and_its_prompt_all_before_it() -> None:
    form = PromptCompletion(retelling())
    (whole,) = Messages(retelling()).records(await long_story())
    records = form.records(await long_story())
    assert [record["turn"] for record in records] == [0, 1, 2, 3]
    for record in records:
        assert set(record) == set(form.schema.names)
        assert [message["role"] for message in record["completion"]] == ["assistant"]
        together = [*record["prompt"], *record["completion"]]
        assert together == [*whole["messages"][: len(together)]]


async def test_every_turn_is_a_completion_also_where_history_is_rewritten() -> None:
    tokenizer = demo_tokenizer(DROPS_REASONING)
    said = [f"Hm.</think>\n\n{line}" for line in (WORK, WORK, SUBMIT)]
    trajectory = await story(*said, tokenizer=tokenizer)
    records = PromptCompletion(retelling(tokenizer)).records(trajectory)
    assert [(record["turn"], record["segment"]) for record in records] == [(0, 0), (1, 1), (2, 2)]
    assert [record["completion"][0]["content"] for record in records] == [f"<think>\n{line}" for line in said]


async def test_only_the_cut_turn_is_marked_as_cut() -> None:
    records = PromptCompletion(retelling()).records(await story(WORK, (WORK, "length")))
    assert [record["truncated"] for record in records] == [False, True]


async def test_sharegpt_takes_turns() -> None:
    form = ShareGpt(retelling())
    (record,) = form.records(await long_story())
    assert set(record) == set(form.schema.names)
    said = record["conversations"]
    assert [message["from"] for message in said] == [
        "system", "human", "function_call", "observation", "gpt", "observation", "gpt", "human", "function_call",
    ]  # fmt: skip
    assert json.loads(said[2]["value"]) == [{"name": "work", "arguments": {"step": step}} for step in (1, 2)]
    assert said[3]["value"].count("</tool_response>\n<tool_response>") == 1
    assert said[4]["value"] == f"I work.\n{WORK}"  # a function_call has no place for words
    assert json.loads(said[8]["value"]) == {"name": "submit", "arguments": {"answer": "42"}}
    assert [tool["name"] for tool in json.loads(record["tools"])] == ["work", "submit"]


async def test_sharegpt_without_tools_and_with_reasoning() -> None:
    tokenizer = demo_tokenizer(DROPS_REASONING)
    (record,) = ShareGpt(retelling(tokenizer)).records(await story("Hm.</think>\n\n42", tokenizer=tokenizer))
    assert record["tools"] == ""
    assert record["conversations"][-1] == {"from": "gpt", "value": "<think>\nHm.</think>\n\n42"}


def takes_turns(conversation: Sequence[Mapping[str, str]]) -> bool:
    """As LLaMA-Factory asks for it."""
    kinds = [message["from"] for message in conversation if message["from"] != "system"]
    asks = all(kind in ("human", "observation") for kind in kinds[::2])
    return asks and all(kind in ("gpt", "function_call") for kind in kinds[1::2]) and len(kinds) % 2 == 0


LINES = st.lists(st.sampled_from([WORK, f"{WORK}\n{AGAIN}", f"I work.\n{WORK}", BAD]), max_size=5)
ENDS = st.sampled_from([SUBMIT, "The answer is 42.", (WORK, "length"), BAD])


@settings(max_examples=25, deadline=None)
@given(LINES, ENDS, st.integers(1, 6))
def test_whatever_an_agent_did_is_told_whole_in_every_format(lines: list[Any], end: Any, turns: int) -> None:
    trajectory = asyncio.run(story(*lines, end, turns=turns, malformed=2))
    count = len(trajectory.turns)
    (record,) = Tokens("drop").records(trajectory)
    assert len(record["input_ids"]) == trajectory.turns[-1].row["context_tokens"]
    assert record["assistant_masks"].sum() == trajectory.agent["output_tokens"]
    assert len(record["turn_starts"]) == count

    told = retelling(rewritten="drop")
    (record,) = Messages(told).records(trajectory)
    assert [message["role"] for message in record["messages"]].count("assistant") == count
    assert record["messages"][-1]["role"] == "assistant"
    made = {call["id"] for message in record["messages"] for call in message.get("tool_calls", ())}
    answered = [message["tool_call_id"] for message in record["messages"] if message["role"] == "tool"]
    assert len(set(answered)) == len(answered) and set(answered) <= made
    assert set(told.counts) <= {"rendered as recorded", "rendered otherwise: tokenization"}

    assert len(PromptCompletion(retelling()).records(trajectory)) == count
    (record,) = ShareGpt(retelling()).records(trajectory)
    assert takes_turns(record["conversations"])


async def test_atif_tells_steps_with_their_calls_results_and_ids() -> None:
    trajectory = await story(f"<think>\nHm.\n</think>\n\n{WORK}\n{AGAIN}", BAD, SUBMIT)
    form = Atif(Instructions("hermes", CONFIG.system, SPECS), telling()[0], "m", "1.2")
    (record,) = form.records(trajectory)
    assert set(record) == set(form.schema.names)
    assert (record["schema_version"], record["session_id"], record["trajectory_id"]) == (
        "ATIF-v1.7", "story", "story/t/0",
    )  # fmt: skip
    assert record["agent"]["tool_definitions"][0]["function"]["name"] == "work"
    steps = record["steps"]
    assert [step["step_id"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent", "user", "agent"]
    first, bad, last = steps[2], steps[3], steps[5]
    assert (first["message"], first["reasoning_content"]) == ("", "Hm.")
    assert [call["arguments"] for call in first["tool_calls"]] == [{"step": 1}, {"step": 2}]
    assert [result["source_call_id"] for result in first["observation"]["results"]] == ["t0000c000", "t0000c001"]
    assert bad["message"] == BAD and "tool_calls" not in bad
    assert last["observation"]["results"][0]["source_call_id"] == last["tool_calls"][0]["tool_call_id"]
    ids: list[int] = []
    for step, turn in zip((first, bad, last), trajectory.turns, strict=True):
        metrics = step["metrics"]
        ids += metrics["extra"]["prompt_delta_token_ids"]
        assert len(ids) == metrics["prompt_tokens"]
        ids += metrics["completion_token_ids"]
        assert len(metrics["completion_token_ids"]) == metrics["completion_tokens"]
        assert metrics["cached_tokens"] == turn.row["cached_device_tokens"]
    totals = record["final_metrics"]
    assert totals["total_completion_tokens"] == sum(len(turn.output_ids) for turn in trajectory.turns)
    assert totals["total_steps"] == 6
    assert record["extra"]["reward"] == 1.0


async def test_atif_tells_the_calls_of_react_from_what_was_executed() -> None:
    said = 'Thought: I work.\nAction: work\nAction Input: {"step": 1}'
    trajectory = await story(said, "Final Answer: 42", format="react")
    form = Atif(Instructions("react", CONFIG.system, SPECS), telling(format="react")[0], "m", "1.2")
    (record,) = form.records(trajectory)
    assert [step["source"] for step in record["steps"]] == ["system", "user", "agent", "agent"]
    assert record["steps"][2]["message"] == said
    assert record["steps"][2]["tool_calls"][0]["function_name"] == "work"
    assert record["steps"][2]["observation"]["results"][0]["content"]


def test_the_tokenizer_of_the_stories_shows_calls() -> None:
    """Or the tests above would test little."""
    assert "tool_calls" in TOKENIZER.template.source
