from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.export.split import Split, read_shares


def test_a_tasks_split_is_the_same_everywhere() -> None:
    split = Split((("train", 0.9), ("val", 0.1)), 7)
    # On any machine, in any version.
    assert [number for number in range(24) if split.of(f"task-{number}") == "val"] == [17, 20]


@given(st.text(), st.integers(0, 9))
def test_larger_shares_take_tasks_away_from_others_only(task: str, seed: int) -> None:
    small, large = (Split((("train", share), ("val", 1 - share)), seed) for share in (0.5, 0.8))
    assert small.of(task) != "train" or large.of(task) == "train"
    assert Split(seed=seed).of(task) == "train"


def test_shares_are_met_and_seeds_differ() -> None:
    tasks = [f"task-{number}" for number in range(4000)]
    split = Split((("train", 0.7), ("val", 0.2), ("test", 0.1)), 1)
    counts = Counter(map(split.of, tasks))
    for name, share in split.shares:
        assert counts[name] == pytest.approx(share * len(tasks), abs=120)  # four standard deviations
    other = Split(split.shares, 2)
    assert sum(split.of(task) != other.of(task) for task in tasks) > 1000


def test_shares_are_read() -> None:
    assert read_shares("train=0.9,val=0.1") == (("train", 0.9), ("val", 0.1))
    assert read_shares(" a = 0.25, b=0.25,c=0.5") == (("a", 0.25), ("b", 0.25), ("c", 0.5))
    assert read_shares("a=0.1,b=0.2,c=0.7")  # whose sum is not quite 1 in floating point
    for wrong, why in {
        "": "no name",
        "train": "no share",
        "train=x": "no share",
        "train=0.5": "add up to 0.5",
        "train=0.9,val=0.2": "add up to 1.1",
        "train=1,val=0": "above 0",
        "train=2,val=-1": "above 0",
        "train=nan": "above 0",
        "train=0.5,train=0.5": "twice",
        "../x=1": "no name",
        "a b=1": "no name",
    }.items():
        with pytest.raises(ValueError, match=why):
            read_shares(wrong)
