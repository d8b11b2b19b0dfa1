"""One KV pool's places: who holds one, who is to give it back, and whether a history fits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.member import Member, State, Traits
from concur_batch.control.queue import Queue
from concur_batch.control.rules import Rules
from concur_batch.control.window import Window
from concur_batch.workload.schema import VictimOrder


def window(capacity: int | None = 4, *, pool_tokens: int | None = None, **rules: Any) -> Window:
    made = Rules(**rules)
    return Window("p", made, Queue(made, 0, Counter()), capacity, pool_tokens=pool_tokens)


def holding(made: Window, *members: Member) -> Window:
    """The window with these agents in it: a, b, c and so on."""
    for letter, member in zip("abcdefgh", members, strict=False):
        made.enter(letter, member)
    return made


@pytest.mark.parametrize(
    ("capacity", "holders", "free", "is_open"),
    [(4, 3, 1, True), (4, 4, 0, False), (2, 3, -1, False), (0, 0, 0, False), (None, 3, None, True)],
)
def test_free_places(capacity: int | None, holders: int, free: int | None, is_open: bool) -> None:
    made = holding(window(capacity), *(Member() for _ in range(holders)))
    assert (made.free, made.open) == (free, is_open)
    made.closed = True
    assert (made.free, made.open) == (free, False)


def test_a_marked_place_is_not_free_yet() -> None:
    made = holding(window(2), Member(), Member())
    made.marked["b"] = None
    assert (made.free, made.open) == (0, False)


@pytest.mark.parametrize(
    ("capacity", "marked", "suspended", "surplus"),
    [
        (4, 0, False, -1),
        (3, 0, False, 0),
        (1, 0, False, 2),
        (1, 2, False, 0),
        (2, 2, False, -1),
        (None, 0, False, 0),
        (None, 2, False, -2),
        (4, 0, True, 3),
        (None, 1, True, 2),
        (0, 3, True, 0),
    ],
)
def test_surplus(capacity: int | None, marked: int, suspended: bool, surplus: int) -> None:
    """Three holders: how many more to mark, or how many marks too many."""
    made = holding(window(capacity), Member(), Member(), Member())
    made.marked = dict.fromkeys("abc"[:marked])
    assert made.surplus(suspended) == surplus


HOLDERS = (
    Member(context_tokens=30, state=State.TOOL_WAIT, since_seconds=5.0),
    Member(context_tokens=10, state=State.ACTIVE, since_seconds=1.0),
    Member(context_tokens=40, state=State.TOOL_WAIT, since_seconds=2.0),
    Member(context_tokens=20, state=State.ACTIVE, since_seconds=4.0),
)


@pytest.mark.parametrize(
    ("order", "victims"),
    [
        ("newest", "dcba"),
        ("oldest", "abcd"),
        ("largest", "cadb"),
        ("smallest", "bdac"),
        ("longest_idle", "cadb"),  # who generates is not idle: last, the newest of them first
    ],
)
def test_each_victim_order(order: VictimOrder, victims: str) -> None:
    made = holding(window(victim_order=order), *HOLDERS)
    assert "".join(made.victims(4)) == victims
    assert "".join(made.victims(2)) == victims[:2]


@pytest.mark.parametrize(("order", "victims"), [("largest", "abcd"), ("smallest", "abcd"), ("longest_idle", "dcba")])
def test_equal_victims_go_in_a_stable_order(order: VictimOrder, victims: str) -> None:
    made = holding(window(victim_order=order), *(Member(context_tokens=5) for _ in range(4)))
    assert "".join(made.victims(4)) == victims


def test_lower_priorities_are_paused_first_each_in_the_order() -> None:
    made = holding(window(), *(Member(Traits(priority=priority)) for priority in (0, 1, 0, 1)))
    assert "".join(made.victims(4)) == "cadb"


def test_the_marked_and_the_forced_are_no_victims() -> None:
    made = holding(window(), Member(), Member(forced=True), Member(), Member())
    made.marked["d"] = None
    assert made.victims(4) == ["c", "a"]


def test_whoever_was_paused_often_enough_comes_last_and_is_spared_once() -> None:
    made = holding(window(max_consecutive_pauses=2), *(Member(pauses_in_a_row=n) for n in (0, 1, 2, 3)))
    assert made.victims(2) == ["b", "a"]
    # The count of those that this cut left alone begins anew; the victims' goes on.
    assert [member.pauses_in_a_row for member in made.holders.values()] == [0, 1, 0, 0]


def test_if_nobody_else_is_left_even_they_are_paused() -> None:
    """The cap must never keep a cut from having its effect."""
    made = holding(window(max_consecutive_pauses=1), Member(pauses_in_a_row=5), Member(pauses_in_a_row=5))
    assert made.victims(1) == ["b"]


def test_a_place_left_takes_its_mark_along() -> None:
    made = holding(window(), Member(context_tokens=7), Member(context_tokens=5))
    made.marked["a"] = None
    assert made.leave("a") is not None
    assert (list(made.holders), list(made.marked), made.history_tokens) == (["b"], [], 5)
    assert made.leave("a") is None


def test_adrift_an_agent_has_no_place_and_no_history_here() -> None:
    made = holding(window(), Member(context_tokens=7), Member(context_tokens=5))
    made.marked["a"] = None
    made.set_adrift("a")
    assert (list(made.holders), list(made.marked), list(made.adrift), made.history_tokens) == (["b"], [], ["a"], 5)
    made.set_adrift("stranger")
    assert list(made.adrift) == ["a"]
    assert made.leave("a") is not None
    assert (list(made.adrift), made.history_tokens) == ([], 5)


@given(
    st.lists(st.tuples(st.sampled_from(["enter", "grow", "leave", "adrift"]), st.integers(0, 5), st.integers(0, 99)))
)
def test_the_history_is_always_that_of_the_holders(moves: list[tuple[str, int, int]]) -> None:
    made = window()
    for move, number, tokens in moves:
        agent = str(number)
        match move:
            case "enter" if agent not in made.holders and agent not in made.adrift:
                made.enter(agent, Member(context_tokens=tokens))
            case "grow" if agent in made.holders:
                made.grow_history(agent, tokens)
            case "leave":
                made.leave(agent)
            case "adrift":
                made.set_adrift(agent)
        assert made.history_tokens == sum(member.context_tokens for member in made.holders.values())


@pytest.mark.parametrize(("tokens", "fits"), [(500, True), (501, False)])
def test_a_history_fits_beside_the_others(tokens: int, fits: bool) -> None:
    """Pool 1000, nine tenths of it for histories, 400 taken: 500 are left, to the token. Only where a rule asks."""
    for rules, expected in (({"long_request_tokens": 1}, fits), ({}, True)):
        made = holding(window(pool_tokens=1000, **rules), Member(context_tokens=400))
        assert made.fits(Member(context_tokens=tokens)) is expected


@pytest.mark.parametrize(("growth_tokens", "fits"), [(50, True), (51, False)])
def test_predicted_growth_counts_for_the_holders_and_the_next_one(growth_tokens: int, fits: bool) -> None:
    """400 and 200 of 900, and three turns of growth for two agents: 600 + 2 * 3 * 50 = 900."""
    made = holding(window(pool_tokens=1000, growth_turns=3), Member(context_tokens=400))
    made.growth_tokens = growth_tokens
    assert made.fits(Member(context_tokens=200)) is fits


def test_one_agent_always_goes_on() -> None:
    huge = Member(context_tokens=10**9)
    assert window(pool_tokens=1000, growth_turns=3).fits(huge)
    assert window(pool_tokens=1000, long_request_tokens=1).fits(huge)
    assert holding(window(pool_tokens=None, growth_turns=3), Member()).fits(huge)  # a pool of unknown size


@pytest.mark.parametrize(
    ("share", "evicted_tokens", "gone"),
    [(0.5, 599, False), (0.5, 600, True), (1.0, 1099, False), (1.0, 1100, True), (0.0, 100, True)],
)
def test_a_prefix_is_believed_gone_at_exactly_the_share(share: float, evicted_tokens: int, gone: bool) -> None:
    """Pool 1000; it had evicted 100 at the agent's last turn."""
    made = window(pool_tokens=1000, move_evicted_share=share)
    made.evicted_tokens = evicted_tokens
    assert made.prefix_gone(Member(evicted_before=100)) is gone


def test_nothing_is_believed_of_a_pool_of_unknown_size_and_everything_of_a_closed_one() -> None:
    made = window(pool_tokens=None)
    made.evicted_tokens = 10**9
    assert not made.prefix_gone(Member())
    made.closed = True
    assert made.prefix_gone(Member())
