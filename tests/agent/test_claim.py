"""One agent's claim by hand: what it tells, what it counts as waiting, and what its host tells of it."""

from __future__ import annotations

import pytest

from concur_batch.agent.claim import Claim, Pass, Wish, longest_seconds
from concur_batch.control.member import Beat, Event, Permit, State, Traits
from concur_batch.control.rules import Rules

RULES = Rules()
PER_GENERATION = Rules(per_generation=True)
SMALL = Wish(100, 10)
OUTGROWN = Wish(100, 10, outgrown=True)


def generating(rules: Rules = RULES) -> Claim:
    """At its first generation, in pool p, since second 2; asked for in second 0."""
    claim = Claim("a", Traits(priority=1))
    claim.asks(Wish(50, 50), rules, 0.0)
    claim.takes(Permit("a", 1, True, "p"), 2.0)
    claim.passes(2.0)
    return claim


def in_tool(rules: Rules = RULES) -> Claim:
    claim = generating(rules)
    claim.generated(60, rules, 5.0)
    return claim


def test_each_kind_of_wait_is_counted_as_what_it_was() -> None:
    """Pending for 3 s, then marked before it has gone on: paused for 4 s."""
    claim = Claim("a", Traits(priority=1))
    assert claim.asks(SMALL, RULES, 1.0) == Event("arrive", "a", 0, 100, Traits(priority=1))
    assert claim.takes(Permit("a", 1, True, "p"), 3.0) is None
    assert claim.takes(Permit("a", 2, False, "p"), 4.0) == Event("boundary", "a", 2, 100)
    assert claim.takes(Permit("a", 3, True, "q"), 8.0) is None
    assert claim.passes(8.0) == Pass("q", 3.0, 4.0, 0.0, paused=True)
    claim.generated(110, RULES, 9.0)
    assert claim.asks(SMALL, RULES, 20.0) is None
    assert claim.passes(20.0) == Pass("q")


def test_under_a_request_cap_the_wait_between_turns_is_in_the_queue() -> None:
    claim = generating(PER_GENERATION)
    assert claim.generated(60, PER_GENERATION, 5.0) == Event("yield", "a", 1)
    assert claim.asks(SMALL, PER_GENERATION, 6.0) == Event("arrive", "a", 1, 100, Traits(priority=1))
    claim.takes(Permit("a", 2, True, "p"), 10.0)
    assert claim.passes(10.0) == Pass("p", queue_seconds=4.0)


@pytest.mark.parametrize("rules", [RULES, Rules(long_request_tokens=1000)])
def test_an_agent_that_has_outgrown_its_pool_gives_up_its_leave_there(rules: Rules) -> None:
    claim = in_tool(rules)
    assert claim.asks(OUTGROWN, rules, 6.0) == Event("large", "a", 1, 100)
    assert (claim.allowed, claim.state) == (False, State.PAUSED)
    claim.takes(Permit("a", 2, True, "q"), 7.0)
    assert claim.passes(7.0) == Pass("q", paused_seconds=1.0, paused=True)


def test_one_that_must_ask_anyhow_tells_so_only_once() -> None:
    marked = in_tool()
    marked.takes(Permit("a", 2, False, "p"), 5.5)
    assert marked.asks(OUTGROWN, RULES, 6.0) == Event("boundary", "a", 2, 100)
    queued = in_tool(PER_GENERATION)
    event = queued.asks(OUTGROWN, PER_GENERATION, 6.0)
    assert event is not None
    assert event.kind == "arrive"


@pytest.mark.parametrize("rules", [RULES, PER_GENERATION])
@pytest.mark.parametrize("why", ["down", "large"])
def test_a_refused_generation_asks_again_whatever_leave_has_come_since(rules: Rules, why: str) -> None:
    claim = generating(rules)
    claim.takes(Permit("a", 2, False, "p"), 3.0)
    claim.refuse(why)  # type: ignore[arg-type]
    claim.takes(Permit("a", 3, True, "p"), 4.0)
    assert not claim.generates
    assert claim.asks(Wish(50, 50), rules, 5.0) == Event(why, "a", 3, 50)  # type: ignore[arg-type]
    assert (claim.allowed, claim.state, claim.waits) == (False, State.PAUSED, True)
    claim.takes(Permit("a", 4, True, "q"), 6.0)
    assert claim.passes(6.0).pool == "q"
    assert claim.generates


def test_a_second_generation_at_once_is_an_error_whether_the_first_waits_or_runs() -> None:
    waiting = Claim("a")
    waiting.asks(SMALL, RULES, 0.0)
    for claim in (waiting, generating()):
        with pytest.raises(RuntimeError, match="a second generation"):
            claim.asks(SMALL, RULES, 9.0)


def test_only_place_holders_have_a_beat() -> None:
    assert generating().beat() == Beat("a", State.ACTIVE, 50)
    assert in_tool().beat() == Beat("a", State.TOOL_WAIT, 60)
    paused = in_tool()
    paused.asks(OUTGROWN, RULES, 6.0)
    assert paused.beat() is None


def test_the_length_of_a_tool_wait_is_told_once_it_has_ended_and_only_once() -> None:
    claim = in_tool()
    assert claim.beat() == Beat("a", State.TOOL_WAIT, 60, None)
    since_seconds = claim.since_seconds
    assert claim.asks(Wish(70, 10), RULES, since_seconds + 4.0) is None
    claim.passes(since_seconds + 4.0)
    assert claim.beat() == Beat("a", State.ACTIVE, 70, 4.0)
    assert claim.beat() == Beat("a", State.ACTIVE, 70, None)


def test_the_longest_generation_of_a_pool_is_told_while_it_runs() -> None:
    late = generating()
    late.since_seconds = 7.0
    refused = generating()
    refused.since_seconds = 0.0
    refused.refuse("down")
    assert longest_seconds([generating(), late, in_tool(), refused], 10.0) == {"p": 8.0}
    assert longest_seconds([late, generating()], 10.0) == {"p": 8.0}
    assert longest_seconds([in_tool(), Claim("new")], 10.0) == {}
