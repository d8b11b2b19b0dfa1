"""A window in tokens: who is let in, who is paused, and whose tool waits hold their places."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.control.admission import Admission
from concur_batch.control.load import Load
from concur_batch.control.member import Beat, Event, Permit, Spent, State
from concur_batch.control.policies import make_policy
from concur_batch.control.policy import Verdict
from concur_batch.control.prefill import PrefillRate, request_rate
from concur_batch.control.room import Room
from concur_batch.control.rules import Rules
from concur_batch.control.waits import Waits
from concur_batch.engine.signals import Sample
from concur_batch.workload.schema import TokenWindow
from tests.control.agents_by_hand import obey, release, tell


def roomy(room: Room, pools: str = "p", **rules: object) -> Admission:
    admission = Admission(Rules(**rules), pools)  # type: ignore[arg-type]
    bound(admission, room)
    return admission


def bound(admission: Admission, room: Room, now_seconds: float = 0.0) -> list[Permit]:
    return admission.resize(dict.fromkeys(admission.windows), now_seconds, dict.fromkeys(admission.windows, room))


def arrive(admission: Admission, tokens: dict[str, int], shared: int | None = None) -> list[str]:
    """The agents, of so many tokens each, that are let in."""
    permits: list[Permit] = []
    for agent, size in tokens.items():
        permits += admission.take(Event("arrive", agent, 0, size, shared_tokens=shared), 0.0)
    return [permit.agent for permit in permits if permit.allowed]


def test_agents_are_let_in_while_their_histories_fit() -> None:
    admission = roomy(Room(100, 110))
    assert arrive(admission, {"a": 60, "b": 30, "c": 20, "d": 5}) == ["a", "b"]
    assert admission.waiting == 2, "nobody overtakes the one that does not fit"
    assert {permit.agent for permit in release(admission, "b") if permit.allowed} == {"c", "d"}


def test_what_all_have_in_common_counts_once() -> None:
    admission = roomy(Room(100, 110))
    assert arrive(admission, {"a": 60, "b": 60, "c": 60}, shared=50) == ["a", "b", "c"]
    assert admission.windows["p"].footprint_tokens == 80
    assert arrive(admission, {"d": 60, "e": 60, "f": 60}, shared=50) == ["d", "e"]


def test_the_least_that_any_host_has_seen_is_in_common() -> None:
    admission = roomy(Room(200, 210))
    arrive(admission, {"a": 60}, shared=50)
    arrive(admission, {"b": 60}, shared=20)
    arrive(admission, {"c": 60}, shared=40)
    assert admission.windows["p"].footprint_tokens == 180 - 2 * 20


def test_the_newest_pause_until_the_others_fit_and_no_more() -> None:
    admission = roomy(Room(100, 110))
    arrive(admission, {"a": 30, "b": 30, "c": 30})
    tell(admission, "abc", State.TOOL_WAIT, 1.0, tokens=50)
    refused = [permit for permit in bound(admission, Room(100, 110), 1.0) if not permit.allowed]
    assert [permit.agent for permit in refused] == ["c"]
    assert not obey(admission, refused, 2.0, tokens=50), "100 of 100 are inside"
    assert [permit.agent for permit in release(admission, "a", 3.0)] == ["c"]


def test_one_more_turn_of_each_has_to_fit() -> None:
    admission = roomy(Room(200, 220, turns_ahead=1))
    arrive(admission, {"a": 30, "b": 30})
    tell(admission, "ab", State.TOOL_WAIT, 1.0, tokens=30)
    tell(admission, "ab", State.TOOL_WAIT, 2.0, tokens=50)  # a turn adds 20
    assert arrive(admission, {"c": 30, "d": 21}) == ["c"], "a, b and c have 190 after their next turn"
    assert admission.windows["p"].spare == 10
    tell(admission, "ab", State.TOOL_WAIT, 3.0, tokens=70)
    refused = [permit.agent for permit in bound(admission, Room(200, 220, turns_ahead=1), 3.0) if not permit.allowed]
    assert refused == ["c"], "230 would be inside"


@pytest.mark.parametrize("feed_idle", [True, False])
def test_an_engine_that_does_nothing_takes_one_more_whatever_is_inside(feed_idle: bool) -> None:
    admission = roomy(Room(90, 100), feed_idle=feed_idle)
    arrive(admission, {"a": 80})
    tell(admission, "a", State.ACTIVE, 1.0, tokens=80)
    assert not arrive(admission, {"b": 50, "c": 50})
    tell(admission, "a", State.TOOL_WAIT, 2.0, tokens=80)
    assert [permit.agent for permit in bound(admission, Room(90, 100), 2.0) if permit.allowed] == ["b"] * feed_idle


def test_the_smallest_are_paused_first_where_the_policy_says_so() -> None:
    admission = roomy(Room(100, 110), victim_order="smallest")
    arrive(admission, {"a": 20, "b": 30, "c": 30})
    tell(admission, "bc", State.TOOL_WAIT, 1.0, tokens=50)
    refused = [permit.agent for permit in bound(admission, Room(100, 110), 1.0) if not permit.allowed]
    assert refused == ["a"]


def test_waiting_agents_tokens_are_idle_but_what_all_share() -> None:
    admission = roomy(Room(200, 210))
    arrive(admission, {"a": 60, "b": 60}, shared=50)
    arrive(admission, {"c": 70}, shared=50)
    tell(admission, "c", State.TOOL_WAIT, 1.0, tokens=70)
    assert admission.windows["p"].idle_tokens == 20


def test_beats_teach_how_long_tools_take() -> None:
    admission = roomy(Room(200, 210))
    arrive(admission, {"a": 60})
    for second in range(30):
        admission.beat([Beat("a", State.ACTIVE, 60, 40.0), Beat("a", State.TOOL_WAIT, 60)], float(second))
    assert admission.waits.hold_seconds(10.0) == 0.0


def test_marks_are_lifted_where_room_comes_before_the_pause() -> None:
    admission = roomy(Room(100, 110))
    arrive(admission, {"a": 30, "b": 30, "c": 30})
    tell(admission, "abc", State.TOOL_WAIT, 1.0, tokens=50)
    bound(admission, Room(100, 110), 1.0)
    lifted = [permit for permit in release(admission, "a", 2.0) if permit.allowed]
    assert [permit.agent for permit in lifted] == ["c"]
    assert not admission.windows["p"].marked


def test_one_agent_always_goes_on() -> None:
    admission = roomy(Room(100, 110))
    assert arrive(admission, {"a": 500, "b": 10}) == ["a"]
    assert not bound(admission, Room(100, 110), 1.0), "it is not paused either"
    assert [permit.agent for permit in release(admission, "a", 2.0)] == ["b"]


def test_a_tool_wait_holds_its_place_so_long_and_no_longer() -> None:
    admission = roomy(Room(100, 110, hold_seconds=5.0))
    arrive(admission, {"a": 60, "b": 60})
    tell(admission, "a", State.TOOL_WAIT, 1.0, tokens=60)
    assert not bound(admission, Room(100, 110, hold_seconds=5.0), 5.9)
    permits = {permit.agent: permit for permit in bound(admission, Room(100, 110, hold_seconds=5.0), 6.0)}
    assert not permits["a"].allowed and permits["b"].allowed
    assert not admission.take(Event("boundary", "a", permits["a"].epoch, 70), 7.0), "b is inside"
    assert [permit.agent for permit in release(admission, "b", 8.0)] == ["a"]


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    grown=st.lists(st.integers(0, 60), min_size=12, max_size=12),
    shared=st.integers(0, 20),
)
def test_after_the_pauses_what_is_inside_fits_or_is_one_agent(sizes: list[int], grown: list[int], shared: int) -> None:
    room = Room(100, 120)
    admission, window = roomy(room), None
    agents = {f"a{number}": shared + size for number, size in enumerate(sizes)}
    arrive(admission, agents, shared)
    window = admission.windows["p"]
    assert len(window.holders) == 1 or window.footprint_tokens <= room.admit_tokens
    for number, (agent, size) in enumerate(agents.items()):
        if agent in window.holders:
            tell(admission, [agent], State.TOOL_WAIT, 1.0, tokens=size + grown[number])
    for _ in range(len(agents)):  # pauses may let others in
        permits = bound(admission, room, 2.0)
        for permit in permits:
            if not permit.allowed:
                member = admission.member(permit.agent)
                assert member is not None
                obey(admission, [permit], 2.0, tokens=member.context_tokens)
    assert len(window.holders) == 1 or window.footprint_tokens <= room.pause_tokens
    assert len(window.holders) + admission.waiting == len(agents)


def test_of_several_pools_the_one_with_most_tokens_left_is_next() -> None:
    admission = roomy(Room(100, 110), "pq")
    arrive(admission, {"a": 80, "b": 10, "c": 10})
    assert [sorted(admission.windows[pool].holders) for pool in "pq"] == [["a"], ["b", "c"]]


def policy_after(seconds: int, computed_tokens: int, **load: object) -> Verdict:
    """What the policy decides after so many periods of a second, all alike, on a pool of 1,000 tokens."""
    policy = make_policy(TokenWindow(policy="token_window"), 100)
    for second in range(1, seconds + 1):
        verdict = policy.step(
            None,
            Sample(stale=False, computed_tokens=computed_tokens),
            Load(float(second), pool_tokens=1000, **load),  # type: ignore[arg-type]
        )
    return verdict


def waits_of(seconds: float) -> Waits:
    waits = Waits()
    for _ in range(50):
        waits.add(seconds)
    return waits


def test_the_room_is_of_the_pool_and_a_wait_is_worth_a_prefill_of_it() -> None:
    unknown = policy_after(3, 50).room
    assert unknown is not None
    assert (unknown.admit_tokens, unknown.pause_tokens, unknown.hold_seconds) == (900, 1000, 1000 / 50)
    held = policy_after(3, 50, waits=waits_of(4.0)).room
    assert held is not None and held.hold_seconds == math.inf


@pytest.mark.parametrize(("computed_tokens", "turns_ahead"), [(0, 1.0), (50, 1.25), (100, 3.0)])
def test_it_looks_further_ahead_where_the_engine_prefills_all_the_time(
    computed_tokens: int, turns_ahead: float
) -> None:
    room = policy_after(60, computed_tokens, spent=Spent(prefill_tokens_per_second=100.0)).room
    assert room is not None and room.turns_ahead == pytest.approx(turns_ahead, rel=0.01)
    early = policy_after(1, computed_tokens, spent=Spent(prefill_tokens_per_second=100.0)).room
    assert early is not None and early.turns_ahead == 1.0


def test_at_the_start_an_eighth_of_the_pool_comes_in_what_all_share_apart() -> None:
    room = make_policy(TokenWindow(policy="token_window"), 100).start(0, 1000).room
    assert room == Room(900, 1000, None, 1, 1.0, 125)
    assert arrive(roomy(room), {"a": 40, "b": 40, "c": 40, "d": 40}) == ["a", "b", "c"]
    assert arrive(roomy(room), dict.fromkeys("abcd", 440), shared=400) == ["a", "b", "c"]
    assert arrive(roomy(room), {"a": 800, "b": 40}) == ["a"], "one agent always goes on"


def decided(sample: Sample, **load: object) -> Verdict:
    policy = make_policy(TokenWindow(policy="token_window"), 100)
    return policy.step(None, sample, Load(1.0, pool_tokens=1000, **load))  # type: ignore[arg-type]


def intake(sample: Sample, **load: object) -> int | None:
    room = decided(sample, **load).room
    assert room is not None
    return room.intake_tokens


def test_an_engine_without_a_backlog_takes_an_eighth_of_its_pool_more_each_period() -> None:
    known = {"generating": 8, "waiting": 9, "growth_tokens": 20}
    assert intake(Sample(running_requests=6, waiting_requests=0), **known) == 125
    assert intake(Sample(), **known) == 125, "a queue that nobody tells of"
    assert intake(Sample(running_requests=6), generating=8) is None, "where nobody wants in, nobody is kept out"
    assert intake(Sample(), generating=8, waiting=9) == 15, "nobody knows yet what a turn adds"


@pytest.mark.parametrize(
    "sample",
    [
        Sample(running_requests=8, waiting_requests=1),
        Sample(running_requests=3, waiting_requests=0),  # of eight that were sent: it has not looked yet
        Sample(stale=True),
    ],
)
def test_while_requests_wait_in_the_engine_no_more_come_in_than_leave(sample: Sample) -> None:
    assert intake(sample, generating=8, waiting=9) == 0
    assert intake(sample, generating=8) is None
    told = "; requests wait in the engine, so no more come in than leave"
    assert decided(sample, generating=8, waiting=9).reason.endswith(told)
    assert told not in decided(Sample(), generating=8, waiting=9).reason


def test_the_intake_counts_from_the_periods_begin() -> None:
    admission, room = roomy(Room(900, 1000)), Room(900, 1000, intake_tokens=100)
    assert arrive(admission, {"a": 60, "b": 60}) == ["a", "b"]
    bound(admission, room)
    assert arrive(admission, {"c": 60, "d": 60, "e": 40}) == ["c"], "and nobody overtakes"
    assert [permit.agent for permit in bound(admission, room)] == ["d", "e"]
    assert not arrive(admission, {"f": 400, "g": 50})
    assert [permit.agent for permit in bound(admission, room)] == ["f"], "the first of a period, however large"


def test_an_intake_of_none_at_all_replaces_those_who_leave_and_feeds_an_engine_that_does_nothing() -> None:
    admission, room = roomy(Room(900, 1000), feed_idle=True), Room(900, 1000, intake_tokens=0)
    arrive(admission, {"a": 60, "b": 60})
    bound(admission, room)
    assert not arrive(admission, {"c": 50, "d": 50, "e": 50})
    assert [permit.agent for permit in release(admission, "a") if permit.allowed] == ["c"]
    tell(admission, "bc", State.TOOL_WAIT, 2.0, tokens=60)
    assert [permit.agent for permit in bound(admission, room, 2.0)] == ["d"]


def let_in(admission: Admission) -> list[str]:
    permits = bound(admission, Room(600, 700), 9.0)
    return [permit.agent for permit in permits if permit.allowed]


@pytest.mark.parametrize(("new", "first"), [(4, "d"), (3, "n0")])
def test_once_no_more_are_left_to_begin_than_hold_a_place_they_go_before_the_paused(new: int, first: str) -> None:
    admission = roomy(Room(600, 700), last_wave_first=True)
    arrive(admission, dict.fromkeys("abcd", 100))
    tell(admission, "abcd", State.TOOL_WAIT, 1.0, tokens=150)
    refused = [permit for permit in bound(admission, Room(300, 500), 1.0) if not permit.allowed]
    obey(admission, refused, 2.0, tokens=150)
    assert sorted(admission.windows["p"].holders) == ["a", "b", "c"]
    arrive(admission, {f"n{number}": 100 for number in range(new)})
    assert let_in(admission) == [first]


def test_what_all_share_is_not_held_by_one_that_waits() -> None:
    room = policy_after(3, 50, shared_tokens=900).room
    assert room is not None and room.hold_seconds == 100 / 50


def test_where_no_wait_is_worth_its_place_nobody_is_held_back() -> None:
    verdict = policy_after(40, 500, waits=waits_of(30.0), spent=Spent(kept_tokens=100, lost_tokens=90))
    assert (verdict.after, verdict.room) == (None, None)


def test_the_room_grows_with_the_share_of_waiting_agents() -> None:
    assert policy_after(60, 0, footprint_tokens=800, idle_tokens=400).room == Room(933, 1037, None, 1)
    assert policy_after(60, 0, footprint_tokens=800, idle_tokens=800).room == Room(1169, 1299, None, 1)
    assert policy_after(1, 0, footprint_tokens=800, idle_tokens=800).room == Room(901, 1001, None, 1), "of late"


def test_a_pool_that_loses_what_it_should_hold_counts_for_less() -> None:
    verdict = policy_after(31, 0, spent=Spent(kept_tokens=100, lost_tokens=90))
    assert verdict.room is not None and verdict.room.admit_tokens == pytest.approx(630, abs=1)
    assert "agents lose 90% of their prefixes, 70% of the pool counts" in verdict.reason


def test_settings_of_a_running_batch_change_and_what_was_learned_stays() -> None:
    old = make_policy(TokenWindow(policy="token_window"), 100)
    for second in range(1, 32):
        old.step(
            None,
            Sample(stale=False, computed_tokens=50),
            Load(float(second), pool_tokens=1000, spent=Spent(kept_tokens=100, lost_tokens=90)),
        )
    new = make_policy(TokenWindow(policy="token_window", admit_share=0.5), 100)
    new.adopt(old)
    room = new.step(None, Sample(stale=False), Load(32.0, pool_tokens=1000)).room
    assert room is not None and room.hold_seconds == pytest.approx(20, rel=0.01)
    assert room.turns_ahead == pytest.approx(3, rel=0.1)
    assert room.admit_tokens == pytest.approx(0.5 * 690, abs=5)


def test_a_pool_of_unknown_size_has_a_window_of_agents() -> None:
    policy = make_policy(TokenWindow(policy="token_window", initial_window=7), 100)
    assert policy.start(0, None).after == 7
    verdict = policy.step(7, Sample(stale=False), Load(1.0, pool_tokens=None))
    assert (verdict.after, verdict.room) == (7, None)
    assert policy.step(7, Sample(stale=False), Load(2.0, pool_tokens=1000)).after is None


def test_one_request_shows_the_speed_that_a_little_work_does_not() -> None:
    rate = PrefillRate()
    for second in range(3):
        busy_share = rate.add(float(second), 50, request_rate(400, 2.0))
    assert (rate.tokens_per_second, busy_share) == (200, 0.25)
    assert (request_rate(400, None), request_rate(400, 0.0), request_rate(9, 0.001)) == (0, 0, 0)


def test_a_burst_that_is_told_late_is_no_speed() -> None:
    rate = PrefillRate()
    for second, tokens in enumerate((0, 0, 0, 0, 500, 0)):
        rate.add(float(second), tokens, 0.0)
    assert rate.tokens_per_second == pytest.approx(500 / 4, rel=0.01)
