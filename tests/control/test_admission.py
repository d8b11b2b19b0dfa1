"""The life of an agent at the admission: places, marks, pauses, every exit, restarts of the controller."""

from __future__ import annotations

from typing import Any

import pytest
from agents_by_hand import arrive, end_generation, granted, obey, opened, refused, release, resize, tell, waiting

from concur_batch.control.admission import Admission
from concur_batch.control.member import Beat, Event, Membership, Permit, State
from concur_batch.control.rules import Rules


def state(admission: Admission, agent: str) -> State:
    member = admission.member(agent)
    return State.FINISHED if member is None else member.state


def test_admits_in_order_of_arrival_up_to_the_window() -> None:
    admission = opened(2)
    assert granted(arrive(admission, "abc")) == "ab"
    assert [state(admission, agent) for agent in "abc"] == [State.ACTIVE, State.ACTIVE, State.PENDING]


def test_a_permit_names_the_pool_and_the_next_epoch() -> None:
    admission = opened(1)
    assert arrive(admission, "a") == [Permit("a", 1, True, "p")]
    assert resize(admission, 0) == [Permit("a", 2, False, "p")]
    assert resize(admission, 1) == [Permit("a", 3, True, "p")]


def test_a_tool_wait_keeps_its_place() -> None:
    admission = opened(2)
    arrive(admission, "abc")
    tell(admission, "ab", State.TOOL_WAIT)
    assert admission.places_held == 2
    assert resize(admission, 2) == []  # nobody is let in for them
    assert state(admission, "c") is State.PENDING


def test_a_later_turn_is_never_a_new_agent() -> None:
    admission = opened(1)
    arrive(admission, "ab")
    for _ in range(3):
        tell(admission, "a", State.TOOL_WAIT)
        tell(admission, "a", State.ACTIVE)
        assert arrive(admission, "a") == []
    assert admission.windows["p"].moves.admitted == 1
    assert admission.places_held == 1


def test_the_paused_are_resumed_before_new_ones_are_admitted() -> None:
    admission = opened(4)
    arrive(admission, "abcdef")
    marks = resize(admission, 2)
    assert refused(marks) == "dc"
    obey(admission, marks)
    assert granted(resize(admission, 3)) == "d"
    assert granted(resize(admission, 5)) == "ce"
    moves = admission.windows["p"].moves
    assert (moves.admitted, moves.paused, moves.resumed, moves.forced) == (5, 2, 2, 0)


def test_growth_lifts_marks_before_anyone_is_resumed_oldest_admission_first() -> None:
    admission = opened(4)
    arrive(admission, "abcde")
    assert refused(resize(admission, 1)) == "dcb"
    assert granted(resize(admission, 3)) == "bc"
    assert list(admission.windows["p"].marked) == ["d"]


def test_a_report_that_a_newer_permit_overtook_is_void() -> None:
    admission = opened(2)
    arrive(admission, "ab")
    (mark,) = resize(admission, 1)
    (lift,) = resize(admission, 2)
    assert (mark.agent, lift.agent, lift.epoch) == ("b", "b", mark.epoch + 1)
    assert obey(admission, [mark]) == []
    assert state(admission, "b") is State.ACTIVE
    assert admission.places_held == 2


@pytest.mark.parametrize("event", ["boundary", "large", "down", "yield", "release"])
def test_reports_of_an_agent_that_has_ended_change_nothing(event: Any) -> None:
    admission = opened(1)
    arrive(admission, "ab")
    assert granted(release(admission, "a")) == "b"
    assert admission.take(Event(event, "a", 1), 1.0) == []
    assert (admission.places_held, admission.waiting, admission.counts()[State.FINISHED]) == (1, 0, 1)
    assert not admission.windows["p"].closed


def test_a_beat_tells_of_holders_alone_and_of_two_states_alone() -> None:
    admission = opened(1)
    arrive(admission, "ab")
    tell(admission, "abz", State.TOOL_WAIT, 3.0, tokens=50)
    assert (state(admission, "a"), state(admission, "b")) == (State.TOOL_WAIT, State.PENDING)
    assert admission.windows["p"].history_tokens == 50
    with pytest.raises(ValueError, match="paused"):
        admission.beat([Beat("a", State.PAUSED, 0)], 4.0)


@pytest.mark.parametrize("phase", ["pending", "active", "tool_wait", "marked", "paused", "adrift"])
@pytest.mark.parametrize("crash", [False, True])
def test_every_exit_gives_the_place_back(phase: str, crash: bool) -> None:
    """peers.md section 3 row 2: finished sessions were never freed, and the batch was eight times slower.

    An agent ends, by itself or with its host, in each phase of its life; the others then get every place there is.
    """
    admission = opened(2, longest_tool_wait_seconds=5.0)
    arrive(admission, "abcd")
    agent = "c" if phase == "pending" else "b"
    if phase in ("tool_wait", "adrift"):
        tell(admission, "b", State.TOOL_WAIT)
    if phase == "adrift":
        assert refused(resize(admission, 2, 5.0)) == "b"
        assert list(admission.windows["p"].adrift) == ["b"]
    if phase in ("marked", "paused"):
        marks = resize(admission, 1)
        if phase == "paused":
            obey(admission, marks)
    if crash:
        admission.release([agent, "unknown"], 6.0)
    else:
        release(admission, agent, 6.0)
    assert state(admission, agent) is State.FINISHED
    resize(admission, 2, 6.0)
    assert admission.places_held == 2
    for rest in "abcd":
        release(admission, rest, 7.0)
    window = admission.windows["p"]
    assert (admission.places_held, admission.waiting, admission.counts()[State.FINISHED]) == (0, 0, 4)
    assert (window.marked, window.adrift, window.history_tokens, list(admission.members())) == ({}, {}, 0, [])
    assert window.moves.completed == 4


def test_a_lost_host_gives_all_its_places_back_at_once() -> None:
    admission = opened(3)
    arrive(admission, "abcdef")
    assert granted(admission.release(["a", "c", "e"], 1.0)) == "df"
    assert waiting(admission) == ""


def test_each_generation_of_an_agent_is_counted() -> None:
    """peers.md section 3 row 3: one estimate per session undercounted its parallel turns. An agent here has one
    generation at a time, so what is left of it: under a request cap each of its generations takes a place of its own,
    and one that asks twice does not get two."""
    admission = opened(1, per_generation=True)
    for _ in range(3):
        assert granted(arrive(admission, "a")) == "a"
        assert arrive(admission, "a") == []
        assert arrive(admission, "b") == []
        assert (admission.places_held, admission.waiting) == (1, 1)
        assert granted(end_generation(admission, "a")) == "b"
        end_generation(admission, "b")
        assert admission.places_held == 0
    assert admission.windows["p"].moves.admitted == 2  # a later turn is no new agent


def test_a_request_cap_never_calls_a_generation_back() -> None:
    admission = opened(3, per_generation=True)
    arrive(admission, "abcd")
    assert resize(admission, 1) == []
    for agent in "ab":
        assert end_generation(admission, agent) == []  # not before there is room under the new cap
    assert granted(end_generation(admission, "c")) == "d"


def test_a_yield_of_an_earlier_place_does_not_cost_the_agent_its_new_one() -> None:
    """A host tells its census, then sends again what it could not deliver before: the end of a generation long past."""
    admission = Admission(Rules(per_generation=True), "p")
    admission.restore([Membership("a", State.QUEUED, 4, True, False, "p")], 0.0)
    assert resize(admission, 1) == [Permit("a", 5, True, "p")]
    assert admission.take(Event("yield", "a", 4), 1.0) == []
    assert (admission.places_held, state(admission, "a")) == (1, State.ACTIVE)
    admission.take(Event("yield", "a", 5), 2.0)
    assert (admission.places_held, state(admission, "a")) == (0, State.TOOL_WAIT)


def test_a_place_is_yielded_under_a_request_cap_alone() -> None:
    admission = opened(1)
    arrive(admission, "ab")
    assert end_generation(admission, "a") == []
    assert admission.places_held == 1


def test_an_unbounded_window_lets_everyone_in() -> None:
    admission = opened(None)
    assert len(arrive(admission, [f"a{number}" for number in range(1000)])) == 1000
    assert admission.waiting == 0


def test_suspended_everyone_pauses_at_a_boundary_and_goes_on_afterwards() -> None:
    admission = opened(3)
    arrive(admission, "abcd")
    marks = admission.suspend(True, 1.0)
    assert refused(marks) == "cba"
    obey(admission, marks[:2], 2.0)
    assert arrive(admission, "e", 2.0) == []
    assert resize(admission, 5, 3.0) == []
    assert (admission.places_held, waiting(admission)) == (1, "bcde")
    # The mark of the one that generates yet is lifted, the paused come back, and then new ones.
    assert granted(admission.suspend(False, 4.0)) == "acbde"


def test_a_restored_controller_grants_nothing_before_it_begins_and_honours_old_marks() -> None:
    admission = Admission(Rules(), "p")
    members = [
        Membership("a", State.ACTIVE, 1, True, True, "p", 10),
        Membership("b", State.TOOL_WAIT, 2, True, True, "p", 20),  # marked by the controller before: its last word
        Membership("c", State.PAUSED, 2, True, False, "p", 30),
        Membership("d", State.PENDING, 0, False, False),
        Membership("z", State.FINISHED, 4, True, False),
    ]
    assert admission.restore(members, 0.0) == []  # others may hold places that we have not heard of
    assert arrive(admission, "e") == []
    assert (admission.places_held, admission.windows["p"].history_tokens) == (2, 30)
    assert resize(admission, 2) == []
    assert granted(release(admission, "a")) == "c"  # the paused before the new
    assert granted(admission.release(["b", "c"], 1.0)) == "de"
    assert admission.member("z") is None


def test_a_pause_that_an_earlier_controller_asked_for_takes_effect() -> None:
    admission = opened(2)
    admission.restore([Membership("a", State.TOOL_WAIT, 2, True, True, "p")], 0.0)
    assert admission.take(Event("boundary", "a", 2), 1.0) == [Permit("a", 3, True, "p")]  # it goes on: there is room


def test_a_host_that_tells_its_census_twice_changes_nothing() -> None:
    admission = opened(1)
    arrive(admission, "ab")
    assert admission.restore([Membership("a", State.PAUSED, 9, True, False, "p")], 1.0) == []
    assert (admission.places_held, state(admission, "a")) == (1, State.ACTIVE)


def test_a_restored_agent_of_a_pool_that_is_no_more_may_go_anywhere() -> None:
    admission = Admission(Rules(), "pq")
    admission.restore([Membership("a", State.PAUSED, 2, True, False, "gone")], 0.0)
    assert admission.waiting_elsewhere == 1
    assert granted(resize(admission, 1)) == "a"


def test_other_rules_hold_from_the_next_decision_on() -> None:
    admission = opened(3)
    arrive(admission, "abc")
    admission.set_rules(Rules(victim_order="oldest", resume_order="newest"))
    marks = resize(admission, 1)
    assert refused(marks) == "ab"
    obey(admission, marks)
    assert granted(resize(admission, 2)) == "b"
