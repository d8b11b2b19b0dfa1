"""Who is next: age, priority, share, deadline, order; and what each of them is there to prevent."""

from __future__ import annotations

import math
import random
from collections import Counter
from statistics import median
from typing import Any

import pytest
from agents_by_hand import arrive, end_generation, granted, obey, opened, refused, release, resize
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.member import Member, Traits
from concur_batch.control.queue import Queue
from concur_batch.control.rules import Rules
from concur_batch.workload.schema import ResumeOrder

MEMBERS = st.builds(
    Member,
    traits=st.builds(
        Traits,
        priority=st.integers(0, 2),
        group=st.sampled_from("xyz"),
        deadline_seconds=st.none() | st.sampled_from([5.0, 9.0]),
    ),
    context_tokens=st.integers(0, 3),
)


def queue(*members: Member, place: int = 0, held: dict[str, int] | None = None, **rules: Any) -> Queue:
    """A queue with a, b, c and so on in it, which began to wait in this order, a second after each other."""
    made = Queue(Rules(**rules), place, held or {})
    for number, member in enumerate(members):
        member.ticket, member.since_seconds = number, float(number)
        made.add({"abcdefgh"[number]: member})
    return made


def order(made: Queue, members: tuple[Member, ...] | list[Member], now_seconds: float = 0.0) -> str:
    """In which order they leave it."""
    by_name = dict(zip("abcdefgh", members, strict=False))
    left = ""
    while (found := made.next(now_seconds)) is not None:
        left += found[1]
        made.remove(found[1], by_name[found[1]])
    return left


@pytest.mark.parametrize(
    ("resume_order", "left"), [("oldest", "abcd"), ("newest", "dcba"), ("smallest", "badc"), ("largest", "cdab")]
)
def test_each_resume_order(resume_order: ResumeOrder, left: str) -> None:
    members = [Member(context_tokens=tokens) for tokens in (20, 10, 40, 30)]
    assert order(queue(*members, resume_order=resume_order), members) == left
    # New agents are admitted as they came, whatever the order of the paused.
    assert order(queue(*members, place=1, resume_order=resume_order), members) == "abcd"


def test_priority_before_group_before_deadline_before_order() -> None:
    """Each pair differs in one thing that speaks for the second, and in all lesser things, that speak for the first."""
    shares = {"held": {"x": 1, "y": 2}}
    first_by = {
        "priority": (Traits(0, "x", 1.0), Traits(1, "y", 2.0)),
        "group": (Traits(0, "y", 1.0), Traits(0, "x", 2.0)),
        "deadline": (Traits(0, "x", 2.0), Traits(0, "x", 1.0)),
        "a deadline at all": (Traits(0, "x", None), Traits(0, "x", 1.0)),
    }
    for reason, pair in first_by.items():
        for resume_order in ("oldest", "smallest"):
            members = [Member(traits, context_tokens=n) for n, traits in enumerate(pair)]
            assert order(queue(*members, **shares, resume_order=resume_order), members) == "ba", reason
    members = [Member(Traits(0, "x", 1.0), context_tokens=n) for n in range(2)]
    assert order(queue(*members), members) == "ab"
    assert order(queue(*members, resume_order="largest"), members) == "ba"  # equal deadlines: the order decides


def test_a_group_that_no_share_names_weighs_one() -> None:
    first, second = Member(Traits(group="x")), Member(Traits(group="y"))
    for shares, left in (({"x": 1.0}, "ab"), ({"y": 1.0}, "ab"), ({"x": 0.9}, "ba"), ({"y": 1.1}, "ba")):
        assert order(queue(first, second, held={"x": 3, "y": 3}, shares=shares), [first, second]) == left


def test_groups_with_equal_shares_are_told_apart_by_deadline_then_order() -> None:
    late, soon = Member(Traits(group="x", deadline_seconds=9.0)), Member(Traits(group="y", deadline_seconds=5.0))
    assert order(queue(late, soon), [late, soon]) == "ba"
    large, small = Member(Traits(group="x"), context_tokens=9), Member(Traits(group="y"), context_tokens=5)
    assert order(queue(large, small, resume_order="smallest"), [large, small]) == "ba"


def test_an_agent_that_comes_from_another_queue_stands_by_when_it_began_to_wait() -> None:
    members = [Member() for _ in range(3)]
    made = queue(members[0])
    members[1].ticket, members[2].ticket = 5, 3
    made.add({"b": members[1]})
    made.add({"c": members[2]})
    assert order(made, members) == "acb"


@given(st.lists(MEMBERS, max_size=8), st.sampled_from(["oldest", "newest", "smallest", "largest"]))
def test_it_is_one_stable_order_whatever_the_lanes(members: list[Member], resume_order: ResumeOrder) -> None:
    """The lanes are a way to find the next one: the order is that of sorting all by the whole rank."""
    made = queue(*members, held={"x": 2, "y": 1}, resume_order=resume_order, shares={"z": 2.0})
    shares = {"x": 2.0, "y": 1.0, "z": 0.0}

    def rank(member: Member) -> tuple[float, ...]:
        traits = member.traits
        key = {"oldest": 0, "newest": -member.ticket, "smallest": member.context_tokens}
        deadline = 1e9 if traits.deadline_seconds is None else traits.deadline_seconds
        own = key.get(resume_order, -member.context_tokens)
        return (-traits.priority, shares[traits.group], deadline, own, member.ticket)

    expected = "".join("abcdefgh"[member.ticket] for member in sorted(members, key=rank))
    assert sorted(made) == sorted(expected)
    assert len(made) == len(members)
    assert order(made, members) == expected
    assert len(made) == 0


@pytest.mark.parametrize("now_seconds", [14.9, 15.0])
def test_whoever_has_waited_too_long_goes_before_any_priority_share_or_order(now_seconds: float) -> None:
    members = [
        Member(Traits(priority=0, group="x"), context_tokens=9),
        Member(Traits(priority=5, group="y", deadline_seconds=1.0), context_tokens=1),
    ]
    made = queue(*members, held={"x": 7}, resume_order="smallest", resume_age_seconds=10.0)
    members[0].since_seconds = members[1].since_seconds = 5.0
    assert order(made, members, now_seconds) == ("ab" if now_seconds >= 15.0 else "ba")


def test_only_paused_agents_age() -> None:
    members = [Member(), Member(Traits(priority=5))]
    assert order(queue(*members, place=1, resume_age_seconds=1.0), members, 99.0) == "ba"


def test_a_request_cap_serves_first_come_first_served() -> None:
    """Whether an agent is new or returns, and in whichever order paused agents would be resumed."""
    admission = opened(1, per_generation=True, resume_order="newest")
    arrive(admission, "abcd")
    served = "a"
    for _ in range(8):
        holder = served[-1]
        served += granted(end_generation(admission, holder))
        arrive(admission, holder)
    assert served == "abcdabcda"


def test_fair_share_by_weights() -> None:
    """Twelve places, 2:1 between a group of 20 that came first and one of 20 that came last: 8 and 4, not 12 and 0."""
    for shares, expected in (({"x": 2.0, "y": 1.0}, (8, 4)), ({"x": 1.0, "y": 2.0}, (4, 8)), ({}, (6, 6))):
        admission = opened(0, shares=shares)
        arrive(admission, [f"x{n}" for n in range(20)], group="x")
        arrive(admission, [f"y{n}" for n in range(20)], group="y")
        held = Counter(permit.agent[0] for permit in resize(admission, 12))
        assert (held["x"], held["y"]) == expected
        # It stays so while agents of one group end.
        for agent in [agent for agent in admission.windows["p"].holders if agent[0] == "x"][:3]:
            release(admission, [agent])
        held = Counter(agent[0] for agent in admission.windows["p"].holders)
        assert (held["x"], held["y"]) == expected


def test_a_share_that_nobody_claims_goes_to_the_others() -> None:
    admission = opened(0, shares={"x": 1.0, "y": 9.0})
    arrive(admission, "abcd", group="x")
    assert granted(resize(admission, 3)) == "abc"


@pytest.mark.parametrize("resume_order", ["newest", "smallest"])
def test_age_bounds_the_wait_that_an_order_would_make_endless(resume_order: ResumeOrder) -> None:
    """Three paused agents take turns of a second in one place. `a` has waited longest and is the largest: under either
    order it never has one. With the bound nobody waits for longer than 10 seconds and the turns of the other two."""
    for age in (None, 10.0):
        admission = opened(3, resume_order=resume_order, resume_age_seconds=age)
        arrive(admission, "abc")
        for mark in sorted(resize(admission, 0), key=lambda permit: permit.agent):
            obey(admission, [mark], 0.0, tokens=100 if mark.agent == "a" else 10)
        served = ""
        for second in range(1, 61):
            (permit,) = resize(admission, 1, float(second))
            served += permit.agent
            tokens = 100 if permit.agent == "a" else 10
            obey(admission, resize(admission, 0, float(second)), float(second), tokens)
        assert ("a" in served) is (age is not None)
        if age is not None:
            longest = max(len(others) for agent in "abc" for others in served.split(agent))
            assert longest <= 12


@pytest.mark.parametrize("most", [None, 1])
def test_the_same_agent_is_not_paused_in_every_cut(most: int | None) -> None:
    """Newest-first pauses the two that came last in every cut: 10 times each, and the other two never. With the cap
    the pauses are spread."""
    admission = opened(4, max_consecutive_pauses=most)
    arrive(admission, "abcd")
    pauses: Counter[str] = Counter()
    for cut in range(10):
        marks = resize(admission, 2, float(cut))
        pauses.update(refused(marks))
        obey(admission, marks, float(cut))
        assert len(granted(resize(admission, 4, float(cut)))) == 2
    assert pauses == ({"a": 5, "b": 5, "c": 5, "d": 5} if most else {"c": 10, "d": 10})


def first_turns(resume_order: ResumeOrder, tokens: list[int]) -> list[int]:
    """64 paused agents of these sizes over 8 places, each for four turns, with a cut to 4 places every fourth turn:
    when each has its first turn."""
    admission, agents = opened(None, resume_order=resume_order), [f"a{number:02}" for number in range(64)]
    arrive(admission, agents)
    for mark, length in zip(sorted(resize(admission, 0), key=lambda permit: permit.agent), tokens, strict=True):
        obey(admission, [mark], 0.0, tokens=length)
    size, left = dict(zip(agents, tokens, strict=True)), dict.fromkeys(agents, 4)
    resize(admission, 8)
    first: dict[str, int] = {}
    for turn in range(1, 100):
        for agent in list(admission.windows["p"].holders):
            first.setdefault(agent, turn)
            left[agent] -= 1
            if not left[agent]:
                release(admission, [agent], float(turn))
        if turn % 4 == 2:
            for mark in resize(admission, 4, float(turn)):
                obey(admission, [mark], float(turn), size[mark.agent])
            resize(admission, 8, float(turn))
    assert not any(left.values())
    return [first[agent] for agent in agents]


def test_a_burst_of_mixed_sizes_starves_nobody_by_size() -> None:
    """peers.md section 3 row 1: 64 programs at once; first turns after 0.5 s to 404 s, in the order of their size.

    By the default order the sizes play no part at all: whichever agent has which size, the schedule is the same, and
    the longest wait is bounded by the median. Smallest-first makes size and wait one order.
    """
    tokens = [1000 + 7000 * number // 63 for number in range(64)]
    shuffled = random.Random(4).sample(tokens, 64)
    waits = first_turns("oldest", shuffled)
    assert waits == first_turns("oldest", tokens) == first_turns("oldest", tokens[::-1])
    assert max(waits) <= 2.5 * median(waits)
    starved = first_turns("smallest", shuffled)
    assert [wait for _, wait in sorted(zip(shuffled, starved, strict=True))] == sorted(starved)


@given(
    st.lists(MEMBERS, min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(-3, 3)), max_size=30),
    st.sampled_from([{}, {"x": 3.0, "y": 0.5}]),
)
def test_who_is_next_follows_the_places_that_groups_hold(
    members: list[Member], changes: list[tuple[str, int]], shares: dict[str, float]
) -> None:
    """However places come and go, the next one is the one that a look at all of them finds."""
    held = dict.fromkeys("xyz", 5)
    made = queue(*members, held=held, shares=shares)
    for group, change in changes:
        before, held[group] = held[group], max(0, held[group] + change)
        if held[group] < before:  # as the admission does
            made.touch(group)
        found = made.next(0.0)
        assert found is not None
        assert found[0] == min(_rank(member, number, held, shares) for number, member in enumerate(members))


def _rank(member: Member, ticket: int, held: dict[str, int], shares: dict[str, float]) -> tuple[float, ...]:
    priority, group, deadline = member.traits
    share = held[group] / shares.get(group, 1.0)
    return (1.0, -priority, share, 0, math.inf if deadline is None else deadline, 0.0, ticket)
