"""pass@k by its definition: all choices of k samples."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.report.passes import pass_at, passes


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_it_is_the_share_of_all_choices_with_a_right_sample(samples: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(samples)))
    choices = list(combinations(samples, k))
    assert pass_at(k, len(samples), sum(samples)) == pytest.approx(sum(map(any, choices)) / len(choices))


def rows(task: str, *rewards: float | str | None) -> list[dict[str, Any]]:
    """A reward, or the class of a failure, for each sample."""
    return [
        {"task_id": task, "reward": None, "failure_class": reward}
        if isinstance(reward, str)
        else {"task_id": task, "reward": reward, "failure_class": None}
        for reward in rewards
    ]


def test_a_worked_example() -> None:
    found = passes([*rows("a", 1.0, 0.0, 0.0, 0.0), *rows("b", 1.0, 1.0), *rows("c", 0.0)])
    assert found == {"at": {1: pytest.approx((0.25 + 1 + 0) / 3), 2: pytest.approx((0.5 + 1) / 2), 4: 1.0},
                     "tasks": {1: 3, 2: 2, 4: 1}, "left_out": 0}  # fmt: skip


def test_what_the_model_failed_is_wrong_and_what_says_nothing_of_it_is_left_out() -> None:
    found = passes(
        [*rows("a", 1.0, "model"), *rows("b", 1.0, "infrastructure", "cancelled", None), *rows("c", "model")]
    )
    assert found == {"at": {1: pytest.approx((0.5 + 1) / 2), 2: 1.0}, "tasks": {1: 2, 2: 1}, "left_out": 4}


@pytest.mark.parametrize(
    "final", [[], rows("a", 1.0), [*rows("a", 1.0), *rows("b", 0.0)], rows("a", 0.5, 1.0), rows("a", "model", "model")]
)
def test_there_is_none_without_several_samples_or_with_rewards_between(final: list[dict[str, Any]]) -> None:
    assert passes(final) is None
