"""One window a KV pool: placement, agents that stay with their prefix, pools that do not answer."""

from __future__ import annotations

import pytest
from agents_by_hand import arrive, granted, obey, opened, refused, release, resize, tell, waiting

from concur_batch.control.admission import Admission
from concur_batch.control.member import Event, Permit, State


def places(admission: Admission) -> dict[str, str]:
    """Who holds a place, by pool."""
    return {name: "".join(window.holders) for name, window in admission.windows.items()}


def paused_in_p(*, pools: str = "pq", move_evicted_share: float = 0.5) -> Admission:
    """`a` is paused in pool p, whose size is 1000 tokens and which had evicted 300 when `a` last generated; the other
    pools are open, p has no place."""
    admission = opened(1, pools, move_evicted_share=move_evicted_share)
    for window in admission.windows.values():
        window.pool_tokens, window.evicted_tokens = 1000, 300
    assert arrive(admission, "a") == [Permit("a", 1, True, "p")]
    tell(admission, "a", State.TOOL_WAIT, 1.0)
    obey(admission, admission.resize({"p": 0}, 2.0), 3.0)
    assert waiting(admission) == "a"
    return admission


def test_new_agents_go_where_most_places_are_free() -> None:
    admission = opened(0, "pqr")
    admission.resize({"p": 1, "q": 3, "r": 2}, 0.0)
    permits = arrive(admission, "abcdefg")
    assert "".join(permit.pool for permit in permits) == "qqrpqr"  # of equal ones the first
    assert {name: len(agents) for name, agents in places(admission).items()} == {"p": 1, "q": 3, "r": 2}
    assert waiting(admission) == "g"


def test_unbounded_pools_share_evenly() -> None:
    admission = opened(None, "pqr")
    arrive(admission, "abcdefg")
    assert places(admission) == {"p": "adg", "q": "be", "r": "cf"}


def test_a_paused_agent_resumes_where_its_prefix_is_though_another_pool_has_room() -> None:
    admission = paused_in_p()
    assert resize_q(admission, 5, 4.0) == []
    assert admission.resize({"p": 1}, 5.0) == [Permit("a", 3, True, "p")]


def resize_q(admission: Admission, capacity: int, now_seconds: float) -> list[Permit]:
    return admission.resize({"q": capacity}, now_seconds)


@pytest.mark.parametrize(("evicted_tokens", "moves"), [(499, False), (500, True)])
def test_it_may_move_once_the_share_of_its_pool_was_evicted_since_its_last_turn(
    evicted_tokens: int, moves: bool
) -> None:
    admission = paused_in_p()
    admission.windows["p"].evicted_tokens += evicted_tokens
    permits = resize_q(admission, 5, 4.0)
    assert permits == ([Permit("a", 3, True, "q")] if moves else [])
    assert admission.waiting_elsewhere == 0


def test_what_was_evicted_before_its_last_turn_does_not_count() -> None:
    admission = opened(1, "pq")
    for window in admission.windows.values():
        window.pool_tokens = 1000
    arrive(admission, "a")
    admission.windows["p"].evicted_tokens = 900
    tell(admission, "a", State.TOOL_WAIT, 1.0)
    obey(admission, admission.resize({"p": 0}, 2.0), 3.0)
    assert resize_q(admission, 5, 4.0) == []


def test_a_restarted_pool_has_lost_every_prefix_even_at_a_share_of_one() -> None:
    admission = paused_in_p(move_evicted_share=1.0)
    admission.windows["p"].evicted_tokens += 1000
    assert resize_q(admission, 5, 4.0) == [Permit("a", 3, True, "q")]


def test_a_prefix_that_went_during_the_tool_wait_lets_the_agent_move_at_once() -> None:
    admission = opened(1, "pq")
    for window in admission.windows.values():
        window.pool_tokens = 1000
    arrive(admission, "a")
    tell(admission, "a", State.TOOL_WAIT, 1.0)
    marks = admission.resize({"p": 0}, 2.0)
    admission.windows["p"].evicted_tokens += 500
    assert obey(admission, marks, 3.0) == [Permit("a", 3, True, "q")]


def test_with_one_pool_there_is_nowhere_to_move() -> None:
    admission = paused_in_p(pools="p")
    admission.windows["p"].evicted_tokens += 10_000
    assert resize(admission, 0, 4.0) == []
    assert admission.waiting_elsewhere == 0
    assert granted(resize(admission, 1, 5.0)) == "a"


def test_the_agents_of_a_closed_pool_go_on_elsewhere() -> None:
    admission = opened(3, "pq")
    arrive(admission, "abcd")
    assert places(admission) == {"p": "ac", "q": "bd"}
    lost = admission.close("p", 1.0)
    assert refused(lost) == "ac"
    assert list(admission.windows["p"].adrift) == ["a", "c"]
    assert granted(obey(admission, lost, 2.0)) == "a"
    assert places(admission) == {"p": "", "q": "bda"}
    assert (waiting(admission), admission.waiting_elsewhere) == ("c", 1)
    assert admission.reopen("p", 3.0) == [Permit("c", 3, True, "p")]
    assert admission.counts()[State.FINISHED] == 0


def test_those_paused_in_a_closed_pool_go_on_elsewhere_too() -> None:
    admission = paused_in_p()
    assert admission.close("p", 4.0) == [Permit("a", 3, True, "q")]


def test_with_one_pool_they_wait_and_go_on_when_it_answers_again() -> None:
    """A dead engine must not drain the queue as failures: nobody is released, in whichever phase it was."""
    admission = opened(2)
    arrive(admission, "abcd")
    tell(admission, "a", State.TOOL_WAIT, 1.0)
    lost = admission.close("p", 2.0)
    assert refused(lost) == "ab"
    assert obey(admission, lost, 3.0) == []
    assert arrive(admission, "e", 3.0) == []
    assert resize(admission, 4, 4.0) == []
    assert (waiting(admission), admission.counts()[State.FINISHED], admission.windows["p"].moves.completed) == (
        "abcde",
        0,
        0,
    )
    assert granted(admission.reopen("p", 5.0)) == "abcd"


def test_an_agent_that_finds_its_pool_down_goes_on_elsewhere_and_nobody_follows_it_in() -> None:
    admission = opened(2, "pq")
    arrive(admission, "ab")
    assert admission.take(Event("down", "a", 1, 50), 1.0) == [Permit("a", 2, True, "q")]
    assert admission.windows["p"].closed
    assert arrive(admission, "c", 2.0) == []
    assert granted(admission.reopen("p", 3.0)) == "c"
    assert places(admission) == {"p": "c", "q": "ba"}


def test_with_one_pool_an_agent_that_finds_it_down_waits_for_it() -> None:
    admission = opened(2)
    arrive(admission, "abc")
    assert admission.take(Event("down", "a", 1, 50), 1.0) == []
    assert (waiting(admission), list(admission.windows["p"].holders)) == ("ac", ["b"])
    assert granted(admission.reopen("p", 2.0)) == "a"


def test_a_report_from_before_the_agent_moved_says_nothing_of_its_new_pool() -> None:
    admission = opened(2, "pq")
    arrive(admission, "a")
    lost = admission.close("p", 1.0)
    obey(admission, lost, 2.0)
    assert places(admission) == {"p": "", "q": "a"}
    assert admission.take(Event("down", "a", 1), 3.0) == []
    assert not admission.windows["q"].closed


@pytest.mark.parametrize(("p", "q", "goes_to"), [(1, 3, "q"), (3, 1, "p")])
def test_an_end_of_the_longest_pause_takes_the_pool_that_is_least_overfull(p: int, q: int, goes_to: str) -> None:
    """Pool r, the home of `z`, does not answer. p and q are full: the one with none beyond its window is the better."""
    admission = opened(0, "pqr", longest_pause_seconds=10.0)
    admission.resize({"r": 1}, 0.0)
    arrive(admission, "z")
    admission.resize({"p": 3, "q": 3}, 0.0)
    arrive(admission, "abcdef")
    marks = admission.resize({"p": p, "q": q, "r": 0}, 1.0)
    obey(admission, [mark for mark in marks if mark.agent == "z"], 1.0)
    admission.close("r", 2.0)
    (permit,) = [permit for permit in admission.resize({}, 11.0) if permit.allowed]
    assert (permit.agent, permit.pool) == ("z", goes_to)


def test_a_group_shares_all_pools_together() -> None:
    admission = opened(0, "pq")
    arrive(admission, "abcd", group="x")
    arrive(admission, "efgh", group="y")
    permits = resize(admission, 2)
    assert sorted(granted(permits)) == ["a", "b", "e", "f"]
    assert granted(release(admission, "a", 1.0)) == "c"


def test_an_agent_longer_than_a_pool_goes_to_one_that_holds_it() -> None:
    admission = opened(4, "pq")
    admission.windows["p"].pool_tokens, admission.windows["q"].pool_tokens = 1000, 3000
    assert arrive(admission, "a", tokens=999) == [Permit("a", 1, True, "p")]
    assert arrive(admission, "b", tokens=1000) == [Permit("b", 1, True, "q")]
    # One that has outgrown its pool asks again.
    assert admission.take(Event("large", "a", 1, 1000), 1.0) == [Permit("a", 2, True, "q")]
    resize_q(admission, 2, 2.0)
    assert arrive(admission, "c", tokens=2000) == []  # p has room, and is too small
    assert waiting(admission) == "c"
    assert granted(release(admission, "a", 3.0)) == "c"


def test_an_agent_longer_than_any_pool_is_let_in_to_be_told_so() -> None:
    admission = opened(4, "pq")
    admission.windows["p"].pool_tokens, admission.windows["q"].pool_tokens = 1000, 3000
    assert granted(arrive(admission, "a", tokens=5000)) == "a"


def test_many_that_are_displaced_at_once_keep_their_order() -> None:
    admission = opened(1, "pqr")
    for window in admission.windows.values():
        window.pool_tokens = 1000
    agents = "abcdefghi"
    admission.resize(dict.fromkeys("pqr", 3), 0.0)
    arrive(admission, agents)
    obey(admission, admission.resize(dict.fromkeys("pqr", 0), 1.0), 2.0)
    order = [agent for window in "pqr" for agent in admission.windows[window].paused]
    assert sorted(order) == list(agents)
    waited = sorted(agents, key=lambda agent: admission.member(agent).ticket)  # type: ignore[union-attr]
    admission.close("p", 3.0)
    admission.close("q", 3.0)
    assert granted(admission.resize({"r": 9}, 4.0)) == "".join(waited)
