"""Token records: the very ids that the engine saw and sampled, and a mask over the sampled ones alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.export.form import Unfit
from concur_batch.export.history import segments, unforeseen
from concur_batch.export.tokens import Tokens
from concur_batch.export.trajectory import Trajectory
from tests.agent.agent_models import demo_tokenizer
from tests.agent.agent_templates import DROPS_REASONING
from tests.agent.rollout_desk import SUBMIT, TOKENIZER, WORK
from tests.export.stories import story, telling

END = TOKENIZER.encode("<|im_end|>")[0]


def masked(record: Any) -> list[int]:
    return record["input_ids"][record["assistant_masks"] == 1].tolist()


def changed(trajectory: Trajectory, number: int, **values: Any) -> Trajectory:
    """With other values in the row of a turn."""
    turns = list(trajectory.turns)
    turns[number] = replace(turns[number], row={**turns[number].row, **values})
    return replace(trajectory, turns=turns)


async def test_the_ids_are_all_that_the_engine_saw_and_the_mask_is_what_it_sampled() -> None:
    trajectory = await story(WORK, f"I go on.\n{WORK}", SUBMIT)
    form = Tokens("split")
    (record,) = form.records(trajectory)
    whole = [part for turn in trajectory.turns for part in (turn.input_delta_ids, turn.output_ids)]
    assert record["input_ids"].tolist() == np.concatenate(whole).tolist()
    assert masked(record) == np.concatenate(whole[1::2]).tolist()
    for start, turn in zip(record["turn_starts"], trajectory.turns, strict=True):
        assert record["input_ids"][start : start + len(turn.output_ids)].tolist() == turn.output_ids.tolist()
    assert (record["run"], record["agent_id"], record["segment"], record["truncated"]) == ("story", "t/0", 0, False)
    assert not record["ids_estimated"]
    assert set(record) == set(form.schema.names)
    assert form.report() == {}


async def test_a_sampled_stop_token_counts_and_one_of_the_template_does_not() -> None:
    """Row 15: the end of a turn is the model's only where it has sampled it."""
    (sampled,) = Tokens("split").records(await story(WORK, SUBMIT))
    (added,) = Tokens("split").records(await story((WORK, "stop"), SUBMIT))  # ended by a stop string, say
    assert sampled["input_ids"].tolist() == added["input_ids"].tolist()
    assert masked(sampled).count(END) == 2
    assert masked(added).count(END) == 1


async def test_a_turn_that_was_cut_is_marked() -> None:
    (record,) = Tokens("split").records(await story(WORK, (WORK[:-15], "length")))
    assert (record["truncated"], record["end_reason"], record["status"]) == (True, "length", "limit")
    assert masked(record)[-3:] == TOKENIZER.encode(WORK[:-15])[-3:]


async def test_a_template_that_strips_reasoning_changes_no_id() -> None:
    """Row 15: the history is what the engine saw, whatever the template would make of it now."""
    tokenizer = demo_tokenizer(DROPS_REASONING)
    trajectory = await story(f"Hm.</think>\n\n{WORK}", f"So.</think>\n\n{SUBMIT}", tokenizer=tokenizer)
    (record,) = Tokens("split").records(trajectory)
    text = tokenizer.decode(record["input_ids"].tolist(), skip_special=False)
    assert text.count("Hm.</think>") == text.count("So.</think>") == 1
    assert tokenizer.decode(masked(record)) == f"Hm.</think>\n\n{WORK}So.</think>\n\n{SUBMIT}"


async def test_turns_whose_prompt_is_not_known_have_no_record() -> None:
    trajectory = await story(WORK, WORK, SUBMIT)
    told = trajectory.turns[1].row["input_tokens"]
    broken = changed(trajectory, 1, input_tokens=told - 7)
    broken = changed(broken, 2, input_tokens=broken.turns[2].row["input_tokens"] - 7)
    assert unforeseen(trajectory.turns) == []
    assert unforeseen(broken.turns) == [1]
    form = Tokens("split")
    (record,) = form.records(broken)
    assert masked(record) == trajectory.turns[0].output_ids.tolist()
    assert form.report() == {"history rewritten": 1, "segments of those": 1, "turns without a known prompt": 2}
    with pytest.raises(Unfit, match="history rewritten"):
        Tokens("drop").records(broken)
    with pytest.raises(Unfit, match="prompt is not known"):
        Tokens("split").records(changed(trajectory, 0, input_tokens=1))


async def test_missing_turns_are_unfit() -> None:
    trajectory = await story(WORK, WORK, SUBMIT)
    for turns in (trajectory.turns[:2], trajectory.turns[1:], [trajectory.turns[0], trajectory.turns[2]]):
        with pytest.raises(Unfit, match="turns are missing"):
            Tokens("split").records(replace(trajectory, turns=turns))
    with pytest.raises(Unfit, match="no turns"):
        Tokens("split").records(replace(trajectory, turns=[]))


async def test_log_probabilities_are_those_of_the_sampled_ids_or_none() -> None:
    trajectory = await story(WORK, SUBMIT)
    form = Tokens("split", logprobs=True)
    assert [record["logprobs"] for record in form.records(trajectory)] == [None]
    count = sum(len(turn.output_ids) for turn in trajectory.turns)
    told = np.linspace(-1, 0, count, dtype=np.float32)
    first = len(trajectory.turns[0].output_ids)
    parts = told[:first], told[first:]
    turns = [replace(turn, output_logprobs=part) for turn, part in zip(trajectory.turns, parts, strict=True)]
    (record,) = form.records(replace(trajectory, turns=turns))
    assert record["logprobs"].tolist() == told.tolist()
    short = [turns[0], replace(turns[1], output_logprobs=parts[1][1:])]
    (record,) = form.records(replace(trajectory, turns=short))
    assert record["logprobs"] is None


def estimated(trajectory: Trajectory, prompts: list[int]) -> Trajectory:
    """As if a chat server had counted so many tokens in each prompt."""
    for number, tokens in enumerate(prompts):
        output = len(trajectory.turns[number].output_ids)
        trajectory = changed(
            trajectory, number, ids_estimated=True, input_tokens=tokens, output_tokens=output, context_tokens=None
        )
    return trajectory


async def test_a_chat_server_that_rewrote_the_history_is_found_by_its_counts() -> None:
    trajectory = await story(WORK, WORK, SUBMIT)
    prompts = [turn.row["input_tokens"] for turn in trajectory.turns]
    near = estimated(trajectory, [prompts[0] + 30, prompts[1] + 28, prompts[2] + 35])
    assert unforeseen(near.turns) == []
    far = estimated(trajectory, [prompts[0], prompts[1], prompts[2] - 20])
    assert unforeseen(far.turns) == [2]

    form = Tokens("split", telling=telling())
    first, second = form.records(far)
    assert form.report() == {"ids are estimates": 1, "history rewritten": 1, "segments of those": 2}
    assert (first["segment"], second["segment"], second["ids_estimated"]) == (0, 1, True)
    # The later part begins with its whole prompt, rendered anew, of which nothing is in the mask.
    assert masked(second) == trajectory.turns[2].output_ids.tolist()
    text = TOKENIZER.decode(second["input_ids"].tolist(), skip_special=False)
    assert text.startswith("<|im_start|>system") and text.count("<tool_response>") == 2
    assert second["turn_starts"].tolist() == [len(second["input_ids"]) - len(trajectory.turns[2].output_ids)]


@given(st.integers(1, 30), st.sets(st.integers(0, 40)))
def test_segments_are_all_turns_in_order_and_begin_where_they_are_cut(turns: int, cuts: set[int]) -> None:
    cuts = {cut for cut in cuts if cut < turns}
    found = segments(turns, cuts)
    assert [turn for part in found for turn in part] == list(range(turns))
    assert {part.start for part in found} == cuts | {0}
