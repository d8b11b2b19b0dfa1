"""The decoding batch's sums against a loop over its members."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.simulator.config import CLIP_NEW_TOKENS
from concur_batch.simulator.request import Request
from concur_batch.simulator.running import RunningBatch
from concur_batch.simulator.sequence import Sequence

OUTPUTS = np.arange(6000, dtype=np.int32)


def make_sequence(outputs: int, kv_tokens: int, done: int, ignores_eos: bool) -> Sequence:
    sequence = Sequence(
        Request("r", np.arange(3, dtype=np.int32), OUTPUTS[:outputs], outputs, ignores_eos), 0.0, outputs
    )
    sequence.kv_tokens, sequence.outputs = kv_tokens, min(done, outputs - 1)
    return sequence


SEQUENCES = st.builds(
    make_sequence, st.sampled_from([1, 2, 5, 9, 30, 5000]), st.integers(0, 40), st.integers(0, 20), st.booleans()
)
STEPS = st.lists(st.one_of(SEQUENCES, st.sampled_from(["step", "step", "step", "leave", "sort"])), max_size=40)


def in_pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sampled_from([1, 4, 16]), st.randoms(use_true_random=False))
def test_it_is_what_a_list_of_its_members_would_be(steps: list[Sequence | str], page_size: int, rng) -> None:  # type: ignore[no-untyped-def]
    batch, members = RunningBatch(page_size), list[Sequence]()
    kv_tokens, outputs = dict[Sequence, int](), dict[Sequence, int]()
    for step in steps:
        if isinstance(step, Sequence):
            batch.add(step)
            members.append(step)
            kv_tokens[step], outputs[step] = step.kv_tokens, step.outputs
        elif step == "step" and members:
            count = rng.randint(1, batch.least_remaining())
            batch.grow(count)
            for member in members:
                kv_tokens[member] += count
                outputs[member] += count
            ended = [member for member in members if outputs[member] >= member.output_limit]
            assert batch.advance(count) == ended
            members = [member for member in members if member not in ended]
            assert all(member.outputs == outputs[member] for member in ended)
        elif step == "leave" and members:
            gone = members.pop(rng.randrange(len(members)))
            batch.remove(gone)
            assert (gone.kv_tokens, gone.outputs) == (kv_tokens[gone], outputs[gone])
        elif step == "sort":
            batch.sort(lambda sequence: (-sequence.outputs,))
            members.sort(key=lambda sequence: -outputs[sequence])
        assert len(batch) == len(members)
        assert batch.kv_tokens == sum(kv_tokens[member] for member in members)
        for ahead in (1, 7):
            pages = [in_pages(kv_tokens[m] + ahead, page_size) - in_pages(kv_tokens[m], page_size) for m in members]
            assert batch.need(ahead) == sum(pages) * page_size
        left = {m: min(m.max_new_tokens - outputs[m], CLIP_NEW_TOKENS) for m in members}
        expected = sum(left[m] * (1.0 if m.request.ignore_eos else 0.25) for m in members)
        assert batch.expected_tokens(0.25) == pytest.approx(expected)
        if members:
            assert batch.least_remaining() == min(m.output_limit - outputs[m] for m in members)
        if rng.random() < 0.3:
            assert [(m, m.outputs, m.kv_tokens) for m in batch] == [(m, outputs[m], kv_tokens[m]) for m in members]
