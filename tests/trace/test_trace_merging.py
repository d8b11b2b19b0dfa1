"""What to merge, and which files hold a table's rows, at every moment of a merge and however it is looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.trace.merging import (
    Part,
    disturbed,
    from_ranges,
    groups,
    part_of,
    pending,
    replaced,
    standing,
    to_ranges,
)

Files = dict[str, frozenset[tuple[str, int]]]  # the segments that are in each file

names = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True)


@st.composite
def tables(draw: st.DrawFn) -> dict[Part, frozenset[int]]:
    """The parts of a table with their segments, of a few recorders with gaps, merged before or not."""
    found: dict[Part, frozenset[int]] = {}
    for recorder in draw(st.lists(st.sampled_from(["n", "n-000007", "m_1"]), min_size=1, max_size=2, unique=True)):
        segments = draw(st.lists(st.integers(0, 2_000_000), min_size=1, max_size=8, unique=True))
        while segments:
            taken, segments = segments[: draw(st.sampled_from([1, 1, 1, 3]))], segments[3:]
            merged = len(taken) > 1 or draw(st.booleans())
            found[Part(recorder, max(taken), len(taken) * merged)] = frozenset(taken)
    return found


def history(files: Files, recorder: str, merge: dict[Part, frozenset[int]], copies: bool) -> list[Files]:
    """What is there after each step of a merge; an object store copies before it deletes."""
    segments = frozenset().union(*merge.values())
    merged = Part(recorder, max(segments), len(segments))
    content = frozenset((recorder, number) for number in segments)
    states = [files, {**files, merged.pending_name: content}]
    for old in replaced(states[-1], merged, segments):
        states.append({name: held for name, held in states[-1].items() if name != old})
    if copies:
        states.append({**states[-1], merged.name: content})
    last = {name: held for name, held in states[-1].items() if name != merged.pending_name}
    return [*states, {**last, merged.name: content}]


def seen(files: Files, listed: set[str]) -> Counter[tuple[str, int]]:
    """How often each segment's rows are read by who has got that listing."""
    contents = {part: frozenset(number for _, number in files[part.pending_name]) for part in pending(listed)}
    return Counter(segment for name in standing(listed, contents) for segment in files[name])


@st.composite
def merges(draw: st.DrawFn) -> tuple[list[Files], Counter[tuple[str, int]]]:
    parts = draw(tables())
    files: Files = {part.name: frozenset((part.recorder, n) for n in held) for part, held in parts.items()}
    recorder = draw(st.sampled_from(sorted({part.recorder for part in parts})))
    mine = sorted(part for part in parts if part.recorder == recorder)
    merge = {part: parts[part] for part in mine[: draw(st.integers(1, len(mine)))]}
    if len(merge) == 1 and next(iter(merge)).segment_count:
        recorded = max(merge).last + 1
        merge[Part(recorder, recorded)] = frozenset([recorded])
        files[Part(recorder, recorded).name] = frozenset([(recorder, recorded)])
    states = history(files, recorder, merge, draw(st.booleans()))
    return states, Counter(segment for held in files.values() for segment in held)


@given(merges())
def test_at_every_step_of_a_merge_each_row_is_read_once_and_no_pattern_finds_one_twice(
    merge: tuple[list[Files], Counter[tuple[str, int]]],
) -> None:
    states, segments = merge
    for files in states:
        assert seen(files, set(files)) == segments
        found = Counter(
            segment
            for name, held in files.items()
            if name.endswith(".parquet") and not name.startswith(".")
            for segment in held
        )
        assert not found - segments
    assert found == segments and not pending(files)


@given(merges(), st.data())
def test_three_listings_that_agree_show_every_row_though_each_took_its_time(
    merge: tuple[list[Files], Counter[tuple[str, int]]], data: st.DataObject
) -> None:
    states, segments = merge
    everything: Files = {name: held for files in states for name, held in files.items()}
    times = sorted(data.draw(st.lists(st.integers(0, len(states) - 1), min_size=6, max_size=6)))

    def listing(first: int, last: int) -> set[str]:  # each name is looked at in a moment of its own
        return {name for name in everything if name in states[data.draw(st.integers(times[first], times[last]))]}

    one, two, three = listing(0, 1), listing(2, 3), listing(4, 5)
    if not disturbed(one, two) and not disturbed(two, three):
        assert seen(everything, two) == segments


def test_two_listings_that_agree_may_both_have_missed_the_merge() -> None:
    """The first saw no pending part, which was not there yet, and no old ones, which were gone when it came to them;
    the second looked for the merged part before the rename and for the pending one after it."""
    missed: set[str] = set()
    assert not disturbed(missed, missed)
    assert disturbed(missed, {"n-000001.2.parquet"})  # the third one
    assert disturbed({"n-000000.parquet", "n-000001.parquet"}, missed)  # or one before the first


def test_a_part_that_is_only_new_disturbs_no_reader() -> None:
    before = {"n-000000.parquet", ".n-000001.parquet.7.tmp"}
    assert not disturbed(before, {"n-000000.parquet", "n-000001.parquet"})
    assert disturbed(before, {"n-000001.parquet"})
    assert disturbed(before, {"n-000000.parquet", "n-000001.2.parquet"})
    assert disturbed(before, {"n-000000.parquet", ".n-000001.2.parquet.new"})
    assert disturbed({".n-000001.2.parquet.new"}, {"n-000001.2.parquet"})


@given(tables(), st.data(), st.integers(1, 100))
def test_groups_are_neighbours_that_fit_no_two_could_be_one_and_only_merged_parts_stay(
    parts: dict[Part, frozenset[int]], data: st.DataObject, most_bytes: int
) -> None:
    bytes_of = {part: data.draw(st.integers(1, 60)) for part in parts}
    found = groups(bytes_of, most_bytes)
    chosen = [part for group in found for part in group]
    assert len(chosen) == len(set(chosen))
    for group in found:
        assert len(group) > 1 or not group[0].segment_count
        assert {part.recorder for part in group} == {group[0].recorder}
        assert len(group) == 1 or sum(bytes_of[part] for part in group) <= most_bytes
    # With what stays alone, in order: each group was full when the next one began.
    alone = [[part] for part in parts if part not in chosen]
    assert all(part.segment_count for [part] in alone)
    for recorder in {part.recorder for part in parts}:
        row = sorted(group for group in found + alone if group[0].recorder == recorder)
        assert [part for group in row for part in group] == sorted(p for p in parts if p.recorder == recorder)
        for group, after in pairwise(row):
            assert sum(bytes_of[part] for part in group) + bytes_of[after[0]] > most_bytes


def test_an_hour_of_parts_is_one_and_a_full_one_is_left_alone() -> None:
    bytes_of = {Part("n", number): 1000 for number in range(100, 460)} | {Part("m", 3): 1000, Part("l", 3, 1): 1000}
    assert groups(bytes_of, 1 << 20) == [[Part("m", 3)], [Part("n", number) for number in range(100, 460)]]
    after = {Part("n", 99, 100): 1 << 20, Part("n", 100): 9, Part("n", 101): 9}
    assert groups(after, 1 << 20) == [[Part("n", 100), Part("n", 101)]]


@given(names, st.integers(0, 10**8), st.integers(0, 10**5))
def test_a_part_is_told_by_its_name(recorder: str, last: int, count: int) -> None:
    part = Part(recorder, last, count)
    assert part_of(part.name) == part
    assert pending([part.name, part.pending_name, "x.new"]) == [part]
    assert part_of(part.pending_name) is None


@pytest.mark.parametrize("name", ["x.parquet", "n-00000.parquet", "n-000000.parquet.tmp", "n-000000..parquet", "a/b"])
def test_other_files_are_no_parts(name: str) -> None:
    assert part_of(name) is None


@given(st.sets(st.integers(0, 400) | st.integers(0, 10**7), min_size=1))
def test_numbers_as_ranges(numbers: set[int]) -> None:
    assert from_ranges(to_ranges(numbers)) == numbers


def test_ranges_are_short() -> None:
    assert to_ranges([*range(3, 3600), 7000, 1]) == "1,3-3599,7000"
    bad: list[Callable[[], object]] = [lambda: from_ranges(""), lambda: from_ranges("1,x")]
    for call in bad:
        with pytest.raises(ValueError):
            call()
