"""Rules beyond the paper's, each against the plain behaviour."""

from __future__ import annotations

import pytest
from agents_by_hand import arrive, granted, obey, opened, refused, release, resize, tell, waiting

from concur_batch.control.admission import Admission
from concur_batch.control.member import Event, State
from concur_batch.control.rules import Rules, make_rules
from concur_batch.workload.schema import AgentCap, Extensions, RequestCap, TokenWindow


def paused_beside(holders: str, **rules: object) -> Admission:
    """A window in which `holders` generate and `z`, the last to come, is paused since second 0."""
    admission = opened(len(holders) + 1, **rules)
    arrive(admission, [*holders, "z"])
    obey(admission, resize(admission, len(holders)))
    assert waiting(admission) == "z"
    return admission


def test_every_rule_is_off_unless_it_is_set() -> None:
    assert make_rules(AgentCap(policy="agent_cap", cap=3)) == Rules()


def test_the_settings_reach_the_rules() -> None:
    extensions = Extensions(
        longest_pause_seconds=1,
        longest_tool_wait_seconds=2,
        long_request_tokens=3,
        growth_turns=4,
        room_share=0.6,
        shares={"x": 7},
    )
    control = RequestCap(
        policy="request_cap",
        cap=1,
        victim_order="largest",
        resume_order="smallest",
        resume_age_seconds=8,
        max_consecutive_pauses=9,
        move_evicted_share=0.1,
        extensions=extensions,
    )
    assert make_rules(control) == Rules(True, False, False, "largest", "smallest", 8, 9, 0.1, 1, 2, 3, 4, 0.6, {"x": 7})
    ours = make_rules(TokenWindow(policy="token_window"))
    assert (ours.last_wave_first, ours.feed_idle) == (True, True)


def test_a_pause_without_a_bound_lasts_until_there_is_a_place() -> None:
    admission = paused_beside("ab")
    assert resize(admission, 2, 10_000.0) == []


def test_the_longest_pause_ends_without_a_place_and_another_pays() -> None:
    admission = paused_beside("ab", longest_pause_seconds=10.0)
    assert resize(admission, 2, 9.9) == []
    permits = resize(admission, 2, 10.0)
    assert (granted(permits), refused(permits)) == ("z", "b")
    window = admission.windows["p"]
    assert (list(window.marked), window.moves.forced, window.moves.resumed) == (["b"], 1, 1)
    assert resize(admission, 2, 11.0) == []


def test_whoever_was_let_in_by_force_is_not_paused_before_it_has_generated() -> None:
    admission = paused_beside("ab", longest_pause_seconds=10.0)
    resize(admission, 2, 10.0)
    assert refused(resize(admission, 0, 11.0)) == "a"
    assert list(admission.windows["p"].marked) == ["b", "a"]
    tell(admission, "z", State.TOOL_WAIT, 12.0)
    assert refused(resize(admission, 0, 13.0)) == "z"


def test_a_pause_that_ends_with_a_free_place_is_not_forced() -> None:
    admission = paused_beside("ab", longest_pause_seconds=10.0)
    assert granted(resize(admission, 3, 50.0)) == "z"
    moves = admission.windows["p"].moves
    assert (moves.forced, moves.resumed, admission.windows["p"].marked) == (0, 1, {})


def test_nobody_is_forced_into_a_suspended_run_or_a_pool_that_does_not_answer() -> None:
    admission = paused_beside("ab", longest_pause_seconds=10.0)
    marks = admission.suspend(True, 1.0)
    obey(admission, marks, 2.0)
    assert resize(admission, 2, 50.0) == []
    admission.suspect("p", 0.0)
    assert admission.suspend(False, 51.0) == []
    assert resize(admission, 2, 51.0) == []
    assert waiting(admission) == "abz"


def test_new_agents_are_not_forced_in() -> None:
    admission = opened(1, longest_pause_seconds=10.0)
    arrive(admission, "ab")
    assert resize(admission, 1, 99.0) == []


def test_a_hung_tool_keeps_its_place_under_the_plain_rules() -> None:
    admission = opened(1)
    arrive(admission, "ab")
    tell(admission, "a", State.TOOL_WAIT, 1.0)
    assert resize(admission, 1, 10_000.0) == []
    assert waiting(admission) == "b"


def test_the_longest_tool_wait_lends_the_place_and_the_agent_asks_on_its_return() -> None:
    admission = opened(1, longest_tool_wait_seconds=10.0)
    arrive(admission, "ab")
    tell(admission, "a", State.TOOL_WAIT, 1.0)
    assert resize(admission, 1, 10.9) == []
    permits = resize(admission, 1, 11.0)
    assert (granted(permits), refused(permits)) == ("b", "a")
    assert obey(admission, permits, 20.0) == []
    assert waiting(admission) == "a"
    assert granted(release(admission, "b", 30.0)) == "a"
    assert not admission.windows["p"].adrift


def test_an_agent_that_came_back_just_before_its_place_was_lent_pauses_a_turn_later() -> None:
    """The permit that lends the place crosses the agent, which generates already: it ends that turn, then asks."""
    admission = opened(1, longest_tool_wait_seconds=10.0)
    arrive(admission, "ab")
    tell(admission, "a", State.TOOL_WAIT, 1.0)
    permits = resize(admission, 1, 11.0)
    window = admission.windows["p"]
    for second, state in ((12.0, State.ACTIVE), (13.0, State.TOOL_WAIT)):
        tell(admission, "a", state, second, tokens=70)
        assert (list(window.holders), list(window.adrift), window.history_tokens) == (["b"], ["a"], 0)
        member = admission.member("a")
        assert member is not None
        assert (member.state, member.context_tokens) == (state, 70)
    assert resize(admission, 1, 99.0) == []  # it has no place that could be lent again
    assert obey(admission, permits, 100.0) == []
    assert (waiting(admission), list(window.adrift)) == ("a", [])


def test_growth_of_an_agent_adrift_is_counted_once() -> None:
    admission = opened(1, longest_tool_wait_seconds=10.0)
    arrive(admission, "ab", tokens=100)
    tell(admission, "a", State.TOOL_WAIT, 1.0, tokens=100)
    resize(admission, 1, 11.0)
    for second in (12.0, 13.0):
        tell(admission, "a", State.TOOL_WAIT, second, tokens=150)
    assert admission.growth_tokens_per_turn == 50.0


def long_pool() -> Admission:
    """A pool of 1000 tokens, of which histories may fill 900, with `a` and `b` of 300 tokens each."""
    admission = opened(4, long_request_tokens=100)
    admission.windows["p"].pool_tokens = 1000
    arrive(admission, "ab", tokens=300)
    return admission


def test_a_long_request_waits_until_its_history_fits_and_nobody_overtakes_it() -> None:
    admission = long_pool()
    assert admission.take(Event("large", "a", 1, 601), 1.0) == []  # 300 and 601 are one token too many
    assert admission.windows["p"].free == 3
    assert arrive(admission, "cd", 2.0, tokens=1) == []  # there are places, but it was first
    assert resize(admission, 4, 3.0) == []
    assert waiting(admission) == "acd"
    assert granted(release(admission, "b", 4.0)) == "acd"


def test_a_long_request_that_fits_goes_on_at_once() -> None:
    admission = long_pool()
    permits = admission.take(Event("large", "a", 1, 600), 1.0)
    assert [(permit.agent, permit.epoch, permit.allowed) for permit in permits] == [("a", 2, True)]
    assert admission.windows["p"].history_tokens == 900


def test_alone_a_long_request_goes_on_whatever_its_size() -> None:
    admission = long_pool()
    admission.take(Event("large", "a", 1, 5000), 1.0)
    assert granted(release(admission, "b", 2.0)) == "a"


def test_under_the_plain_rules_the_pool_is_overshot() -> None:
    admission = opened(4)
    admission.windows["p"].pool_tokens = 1000
    arrive(admission, "ab", tokens=300)
    tell(admission, "a", State.ACTIVE, 1.0, tokens=5000)
    assert granted(arrive(admission, "cd", 2.0, tokens=1)) == "cd"
    assert admission.windows["p"].history_tokens > 1000


def test_whoever_comes_in_beside_a_long_history_must_fit_too() -> None:
    admission = long_pool()
    obey(admission, resize(admission, 1), 1.0, tokens=601)
    assert resize(admission, 4, 2.0) == []
    assert arrive(admission, "c", 2.0, tokens=1) == []
    assert granted(release(admission, "a", 3.0)) == "bc"


def grown(admission: Admission, agent: str, *lengths: int) -> None:
    """The agent ends turns with these lengths of its history."""
    for second, tokens in enumerate(lengths):
        tell(admission, agent, State.TOOL_WAIT, float(second), tokens)


@pytest.mark.parametrize(("growth_turns", "admitted"), [(None, "abcdefgh"), (1, "abcdef"), (4, "abc")])
def test_predicted_growth_admits_fewer_than_the_window(growth_turns: int | None, admitted: str) -> None:
    """Pool 1000, of it 900 for histories. Everyone has 100 tokens and grows by 50 a turn: n agents need
    100 n + 50 n growth_turns."""
    admission = opened(1, growth_turns=growth_turns)
    admission.windows["p"].pool_tokens = 1000
    arrive(admission, "a", tokens=40)
    grown(admission, "a", 50, 100)
    assert admission.growth_tokens_per_turn == 50.0
    arrive(admission, "bcdefgh", 2.0, tokens=100)
    resize(admission, 8, 3.0)
    assert "".join(admission.windows["p"].holders) == admitted


def test_the_growth_is_that_from_prompt_to_prompt_and_from_end_to_end() -> None:
    """What the turn generated and what its tool returned are one turn's growth; a first turn has nothing before it."""
    admission = opened(1)
    arrive(admission, "a", tokens=100)
    tell(admission, "a", State.ACTIVE, 1.0, tokens=100)
    tell(admission, "a", State.TOOL_WAIT, 2.0, tokens=130)
    assert admission.growth_tokens_per_turn == 0.0
    tell(admission, "a", State.ACTIVE, 3.0, tokens=150)
    assert admission.growth_tokens_per_turn == 50.0
    tell(admission, "a", State.TOOL_WAIT, 4.0, tokens=190)
    assert admission.growth_tokens_per_turn == pytest.approx(50.0 + 0.02 * (60 - 50))


@pytest.mark.parametrize("state", [State.ACTIVE, State.TOOL_WAIT])
def test_the_growth_is_learned_where_one_state_is_never_seen(state: State) -> None:
    admission = opened(1)
    arrive(admission, "a", tokens=100)
    for second, tokens in enumerate((100, 160, 220)):
        tell(admission, "a", state, float(second), tokens=tokens)
    assert admission.growth_tokens_per_turn == 60.0


def test_the_growth_per_turn_is_a_slow_mean_over_all_agents() -> None:
    admission = opened(2)
    arrive(admission, "ab", tokens=50)
    grown(admission, "a", 100, 200)
    grown(admission, "b", 100, 150)
    assert admission.growth_tokens_per_turn == pytest.approx(99.0)
    grown(admission, "b", 150)  # the same turn, told again
    assert admission.growth_tokens_per_turn == pytest.approx(99.0)


def test_a_turn_that_went_by_unseen_begins_the_tool_wait_anew() -> None:
    """Two beats say tool wait; the longer history tells that a generation was between them."""
    admission = opened(1, longest_tool_wait_seconds=10.0)
    arrive(admission, "ab")
    tell(admission, "a", State.TOOL_WAIT, 1.0, tokens=100)
    tell(admission, "a", State.TOOL_WAIT, 8.0, tokens=150)
    tell(admission, "a", State.TOOL_WAIT, 15.0, tokens=150)
    assert resize(admission, 1, 17.9) == []
    assert refused(resize(admission, 1, 18.0)) == "a"


def test_a_pool_that_comes_back_forces_nobody_in_for_the_time_it_was_gone() -> None:
    """30 paused agents, an outage longer than the longest pause: it was no pause of theirs."""
    admission = opened(40, longest_pause_seconds=10.0)
    agents = [f"a{number:02d}" for number in range(40)]
    arrive(admission, agents)
    obey(admission, resize(admission, 10, 1.0), 2.0)
    admission.close("p", 3.0)
    admission.reopen("p", 500.0)
    assert resize(admission, 10, 501.0) == []
    assert admission.windows["p"].moves.forced == 0


def test_no_more_are_forced_in_than_can_be_paused_for_it() -> None:
    admission = opened(40, longest_pause_seconds=10.0)
    arrive(admission, [f"a{number:02d}" for number in range(40)])
    obey(admission, resize(admission, 10, 1.0), 2.0)
    permits = resize(admission, 10, 50.0)
    window = admission.windows["p"]
    assert (window.moves.forced, len(window.marked), len(window.holders)) == (10, 10, 20)
    assert sum(permit.allowed for permit in permits) == 10
    assert resize(admission, 10, 51.0) == []  # all who hold a place unmarked have been forced in


def test_a_pause_of_the_whole_run_counts_for_nobody() -> None:
    """Neither as a pause that lasts too long, nor as one of a row of cuts."""
    admission = opened(2, longest_pause_seconds=10.0, max_consecutive_pauses=1)
    arrive(admission, "abc")
    for start in (1.0, 100.0):
        obey(admission, admission.suspend(True, start), start + 1.0)
        admission.suspend(False, start + 50.0)
    assert resize(admission, 2, 151.0) == []
    assert refused(resize(admission, 1, 152.0)) == "b"  # the newest: it was in no cut yet
