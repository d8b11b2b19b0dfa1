from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from concur_batch.export.duplicates import digest
from concur_batch.export.form import Unfit
from concur_batch.export.sieve import Sieve
from concur_batch.export.trajectory import Trajectory, Turn
from tests.export.exported_runs import Plain, agent

Said = tuple[list[int], list[int], str]


def trajectory(task: str, *said: Said, run: str = "r", **values: Any) -> Trajectory:
    """Of turns by their new ids, sampled ids and text."""
    turns = [
        Turn({"turn": number, "output_text": text}, np.array(delta, np.int32), np.array(output, np.int32), None, ())
        for number, (delta, output, text) in enumerate(said)
    ]
    return Trajectory(run, {"error": None, **agent(task, **{"turns": len(said), **values})}, turns)


def fates(sieve: Sieve, *trajectories: Trajectory) -> list[str]:
    found = []
    for each in trajectories:
        try:
            assert len(sieve.records(each)) == 1
            found.append("kept")
        except Unfit as why:
            found.append(str(why))
    return found


ONE: Said = ([1], [2], "Hello  World")


def test_exactly_the_same_is_so_in_all_ids_and_turns() -> None:
    first = digest(trajectory("a", ([1, 2], [3], "x")), "exact")
    assert first == digest(trajectory("b", ([1, 2], [3], "y")), "exact")
    for other in (
        trajectory("a", ([1], [2, 3], "x")),  # the same ids, but another of them sampled
        trajectory("a", ([1, 2], [3], "x"), ([], [], "")),
        trajectory("a", ([1, 2], [4], "x")),
    ):
        assert digest(other, "exact") != first


def test_the_same_text_is_so_in_prompt_and_words() -> None:
    first = digest(trajectory("a", ONE, ([7], [8], "Bye")), "text")
    assert first == digest(trajectory("b", ([1], [5], " hello\nworld "), ([9], [9], "BYE")), "text")
    for other in (
        trajectory("a", ([3], [2], "hello world"), ([7], [8], "bye")),
        trajectory("a", ([1], [2], "hello world bye"), ([7], [8], "")),
        trajectory("a", ([1], [2], "helloworld"), ([7], [8], "bye")),
    ):
        assert digest(other, "text") != first


def test_of_equal_ones_the_first_is_kept_also_over_tasks() -> None:
    form = Plain()
    sieve = Sieve({"r": form}, None, "exact")
    other: Said = ([1], [3], "x")
    said = (("a", ONE), ("a", other), ("a", ONE), ("b", ONE))
    assert fates(sieve, *(trajectory(*each) for each in said)) == ["kept", "kept", "duplicate", "duplicate"]
    assert form.seen == 2  # a duplicate is not even rendered


def test_the_best_are_counted_by_task_without_those_that_have_no_record() -> None:
    form = Plain()
    sieve = Sieve({"r": form}, 2, "text")
    found = fates(
        sieve,
        trajectory("a", ONE, error="x"),
        trajectory("a", ONE),
        trajectory("a", ([1], [4], "hello world")),
        trajectory("a", ([1], [2], "two")),
        trajectory("a", ([1], [2], "three")),
        trajectory("b", ([1], [2], "three")),
    )
    assert found == ["has an error", "kept", "duplicate", "kept", "not among the best 2 of its task", "kept"]
    assert form.seen == 4


def test_each_run_has_its_own_format() -> None:
    forms = {"r": Plain(), "s": Plain()}
    assert fates(Sieve(forms, None, None), trajectory("a", ONE), trajectory("a", ONE, run="s")) == ["kept", "kept"]
    assert [form.seen for form in forms.values()] == [1, 1]


@pytest.mark.parametrize("turns", [2, 0])
def test_turns_that_a_disk_has_taken_are_missed(turns: int) -> None:
    assert fates(Sieve({"r": Plain()}, None, None), trajectory("a", ONE, turns=turns)) == ["turns are missing"]
