"""The boundary cases on the simulated engine, each with the fault that it shows and what mends it.

The figures in the docstrings are simulated ones (`planned_batches`): a pool of 30,000 tokens, histories that end at
about 3,800, and the published thresholds of the law.
"""

from __future__ import annotations

from statistics import correlation, median

import pytest
from planned_batches import (
    COST,
    NONE,
    POOL_TOKENS,
    SHARED_TOKENS,
    agent_cap,
    concur,
    make_plans,
    most,
    recomputed_share,
    recomputed_tokens,
    run,
    statuses,
    with_turn,
)

from concur_batch.bench.batch import BatchResult, simulate_batch
from concur_batch.bench.plan import EnginePlan, Plan, Turn
from concur_batch.bench.same_work import same_work
from concur_batch.simulator.config import EngineConfig
from concur_batch.workload.schema import AnyControl, Concur, Steady


def idle_periods(result: BatchResult) -> int:
    """Periods in which agents wait for a place while no holder generates."""
    return sum(row["active"] == 0 and row["pending"] + row["paused"] > 0 for row in result.control)


def mean_places_held(result: BatchResult) -> float:
    return sum(row["places_held"] for row in result.control) / len(result.control)


def total(result: BatchResult, column: str) -> int:
    return sum(row[column] for row in result.control)


# The pathology itself


def test_without_control_the_batch_thrashes_and_both_the_cap_and_the_law_cure_it() -> None:
    """32 agents: none 501 s and 78 % of prefill recomputed; the right agent cap 278 s, 0 %; the law 306 s, 55 %."""
    plans = make_plans(32)
    none, cap, law = run(plans, NONE), run(plans, agent_cap(8)), run(plans, concur(4))
    assert same_work(none.agents, cap.agents).same
    assert same_work(none.agents, law.agents).same
    assert recomputed_share(none) > 0.7
    assert recomputed_share(cap) < 0.05
    assert recomputed_share(cap) < recomputed_share(law) < recomputed_share(none) - 0.2
    assert cap.seconds < law.seconds < 0.7 * none.seconds
    assert most(none, "history_tokens") > 3 * POOL_TOKENS
    assert most(cap, "history_tokens") < POOL_TOKENS
    assert total(law, "paused_in_period") > 0


# An enormous tool result


def with_results(tokens: int, agents: int) -> list[Plan]:
    """16 agents of which the first few get so long a result in their third turn."""
    huge = Turn(tokens, 60, 5.0)
    return [with_turn(plan, 2, huge) if number < agents else plan for number, plan in enumerate(make_plans(16))]


def test_enormous_tool_results_overshoot_the_pool_and_length_admission_holds_them_back() -> None:
    """Two results of 12,000 tokens among six places: under the plain law holders' histories reach 39,136 tokens, 82,326
    are recomputed, 289 s. With `long_request_tokens` 27,026, 3,136 and 217 s: one waits for the other's end."""
    plans = with_results(12_000, agents=2)
    plain, mended = run(plans, concur(6, 6)), run(plans, concur(6, 6, long_request_tokens=2000))
    assert same_work(plain.agents, mended.agents).same
    assert most(plain, "history_tokens") > POOL_TOKENS > most(mended, "history_tokens")
    assert recomputed_tokens(mended) < recomputed_tokens(plain) / 10
    assert mended.seconds < 0.8 * plain.seconds
    assert [row["pauses"] for row in mended.agents[:2]] == [1, 1]


def test_enormous_results_under_the_law_with_a_window_that_moves() -> None:
    """The same two results, the window free to grow from 6: 53,401 tokens of histories, 242,315 recomputed and 372 s;
    with `long_request_tokens` 39,046, 46,336 and 208 s. It still overshoots, as histories grow after their agents came
    in."""
    plans = with_results(12_000, agents=2)
    plain, mended = run(plans, concur(6)), run(plans, concur(6, long_request_tokens=2000))
    assert same_work(plain.agents, mended.agents).same
    assert most(plain, "history_tokens") > 1.2 * most(mended, "history_tokens") > POOL_TOKENS
    assert recomputed_tokens(mended) < recomputed_tokens(plain) / 4
    assert mended.seconds < 0.7 * plain.seconds


def test_a_single_enormous_result_needs_the_prediction_of_growth_beside_it() -> None:
    """One result of 20,000 tokens, two thirds of the pool. Length admission alone lets it in once it fits, and then the
    others grow beside it: 39,234 tokens of histories and 60,454 recomputed (plain law: 39,234 and 55,900). With
    `growth_turns` as well: 29,674 and 761. The seconds are about the same (plain 258, alone 278, both 261), as places
    stand empty meanwhile."""
    plans = with_results(20_000, agents=1)
    plain = run(plans, concur(6, 6))
    length = run(plans, concur(6, 6, long_request_tokens=2000))
    both = run(plans, concur(6, 6, long_request_tokens=2000, growth_turns=2))
    assert same_work(plain.agents, both.agents).same
    assert most(plain, "history_tokens") == most(length, "history_tokens") > 1.3 * POOL_TOKENS
    assert most(both, "history_tokens") < POOL_TOKENS
    assert recomputed_tokens(both) < recomputed_tokens(plain) / 50 < recomputed_tokens(length) / 50
    assert both.seconds < 1.05 * plain.seconds


# A tool that hangs


def with_hung_tools() -> list[Plan]:
    """16 agents; in the third turn of the first four the tool takes 600 s."""
    hung = Turn(400, 60, 600.0)
    return [with_turn(plan, 2, hung) if number < 4 else plan for number, plan in enumerate(make_plans(16))]


def test_hung_tools_hold_a_full_window_until_a_longest_tool_wait_lends_their_places() -> None:
    """Four places, all held by agents whose tools hang: 659 idle periods, and nobody else is let in for 643 s; 840 s.
    With `longest_tool_wait_seconds: 30` it is 77 periods (all others being done), 47 s and 671 s: hung tools and what
    their agents do then."""
    plans = with_hung_tools()
    plain, mended = run(plans, concur(4, 4)), run(plans, concur(4, 4, longest_tool_wait_seconds=30))
    assert same_work(plain.agents, mended.agents).same
    assert idle_periods(plain) > 600
    assert idle_periods(mended) < 100
    assert min(row["pending_seconds"] for row in plain.agents[4:]) > 600
    assert max(row["pending_seconds"] for row in mended.agents[4:]) < 200
    assert most(mended, "adrift") == 4
    assert [row["pauses"] for row in mended.agents] == [1] * 4 + [0] * 12  # each asked again on its return
    assert most(mended, "places_held") == 4  # its place was lent, not doubled
    assert mended.seconds < plain.seconds - 150


def test_without_a_bound_the_law_grows_past_hung_tools_by_itself() -> None:
    """An idle pool has a low U: W grows by alpha a period, the others go on, and no wait exceeds 10 s."""
    result = run(with_hung_tools(), concur(4))
    assert max(row["pending_seconds"] for row in result.agents) < 10
    assert most(result, "places_held") == 16


# An agent larger than the pool


@pytest.mark.parametrize(
    "control",
    [
        NONE,
        agent_cap(1),
        concur(4),
        Steady(policy="steady", initial_window=4),
        concur(4, long_request_tokens=2000),
        concur(4, growth_turns=2),
    ],
    ids=["none", "agent_cap", "concur", "steady", "long_request_tokens", "growth_turns"],
)
def test_an_agent_larger_than_the_pool_ends_and_the_others_go_on(control: AnyControl) -> None:
    """peers.md section 3 row 18. One grows beyond the pool by a result, one is too large from the start, and one says
    more than fits."""
    plans = [
        Plan("grows", (Turn(300, 60, 2.0), Turn(POOL_TOKENS, 60, 2.0), Turn(300, 60))),
        Plan("starts", (Turn(POOL_TOKENS, 10),)),
        Plan("talks", (Turn(100, POOL_TOKENS),)),
        *make_plans(8),
    ]
    result = run(plans, control)
    assert statuses(result) == ["oversized"] * 3 + ["finished"] * 8
    assert [row["turns"] for row in result.agents] == [1, 0, 1] + [8] * 8
    assert result.control[-1]["places_held"] == 0
    assert result.control[-1]["finished"] == len(plans)


# The prediction of growth


def test_predicted_growth_admits_fewer_and_recomputes_less_at_the_same_window() -> None:
    """16 places for 32 agents. Without: 15.1 held on average, 238,981 tokens recomputed, 403 s. With the growth of 4
    turns: 11.6, 112,683 and 338 s. The first agents come in before any growth is known."""
    plans = make_plans(32)
    plain, predicted = run(plans, agent_cap(16)), run(plans, agent_cap(16, growth_turns=4))
    assert same_work(plain.agents, predicted.agents).same
    assert mean_places_held(predicted) < mean_places_held(plain) - 3
    assert recomputed_tokens(predicted) < recomputed_tokens(plain) / 2
    assert predicted.seconds < 0.9 * plain.seconds
    assert most(predicted, "places_held") == 16


# Two pools


def run_two(control: AnyControl, outage_seconds: tuple[float, float] | None = None) -> BatchResult:
    config = EngineConfig(pool_tokens=POOL_TOKENS)
    engines = {"0": EnginePlan(config, COST), "1": EnginePlan(config, COST, outage_seconds)}
    return simulate_batch(make_plans(32), control, engines, SHARED_TOKENS)


def test_an_agent_stays_in_the_pool_that_holds_its_prefix() -> None:
    """Any move would show as recomputation: none of the 32 agents' 224 later turns recomputes a token."""
    result = run_two(agent_cap(6))
    assert recomputed_tokens(result) == 0
    assert {row["pool"] for row in result.control if row["places_held"] == 6} == {"0", "1"}


@pytest.mark.parametrize("control", [NONE, agent_cap(6), concur(4)], ids=lambda control: control.policy)
def test_when_a_pool_dies_for_a_while_everybody_finishes_elsewhere_or_after_it(control: AnyControl) -> None:
    """Pool 1 is gone from 40 s to 90 s. Agent cap: 187 s become 220 s, and its agents' 13,068 tokens are recomputed."""
    whole, result = run_two(control), run_two(control, outage_seconds=(40.0, 90.0))
    assert statuses(result) == ["finished"] * 32
    assert same_work(whole.agents, result.agents).same
    theirs = [row for row in result.control if row["pool"] == "1"]
    during = [row for row in theirs if 43 <= row["seconds"] < 90]
    assert {row["pool_state"] for row in during} == {"closed"}
    assert {row["places_held"] for row in during} == {0}
    assert all(row["stale"] for row in during)
    # It comes back with an empty cache and zeroed counters: one sample that changes nothing, then it takes agents.
    (back,) = [row for row in theirs if row["restarted"]]
    assert (back["seconds"], back["pool_state"], back["branch"] in ("hold", "fixed")) == (90.0, "open", True)
    if control.policy != "none":  # without a bound, all are in the other pool by then
        assert max(row["places_held"] for row in theirs if row["seconds"] > 90) > 0
    assert recomputed_tokens(result) > recomputed_tokens(whole)
    if isinstance(control, Concur):
        assert max(row["window_after"] - row["window_before"] for row in during) == 0


# Starvation


def mixed_plans() -> list[Plan]:
    """64 agents that differ in size by up to eight times, in no order."""
    sizes = [(1, 2, 4, 8)[(number + number // 4) % 4] for number in range(64)]
    return [
        Plan(
            f"a{number:02d}",
            tuple(Turn((60 if turn else 100) * size, 30, 1.0 + (number * 7 + turn * 3) % 4) for turn in range(6)),
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    "control",
    [agent_cap(8), concur(8), concur(16), Steady(policy="steady", initial_window=8)],
    ids=["agent_cap", "concur from 8", "concur from 16", "steady"],
)
def test_no_size_of_agent_starves_under_the_default_orders(control: AnyControl) -> None:
    """peers.md section 3 row 1, where the first response came after 0.5 s or after 404 s and waits went with size
    (0.75 to 0.87). First come, first served: the longest wait is 1.8 to 2.3 times the median, and the correlation with
    size is below 0.03."""
    plans = mixed_plans()
    result = run(plans, control, pool_tokens=10_000)
    sizes = [plan.tokens for plan in plans]
    waits = [row["pending_seconds"] + row["paused_seconds"] for row in result.agents]
    assert statuses(result) == ["finished"] * 64
    assert max(waits) < 2.5 * median(waits)
    assert abs(correlation(sizes, waits)) < 0.1
    assert max(row["pauses"] for row in result.agents) <= 4


def test_orders_by_size_are_what_makes_large_agents_wait() -> None:
    """Pausing the largest and resuming the smallest first: time in pauses goes with size (0.74); by default it does not
    (-0.06)."""
    plans = mixed_plans()
    sizes = [plan.tokens for plan in plans]

    def pauses_by_size(control: Concur) -> float:
        rows = run(plans, control, pool_tokens=6_000).agents
        return correlation(sizes, [row["paused_seconds"] for row in rows])

    by_size = concur(8).model_copy(update={"victim_order": "largest", "resume_order": "smallest"})
    assert pauses_by_size(by_size) > 0.5
    assert abs(pauses_by_size(concur(8))) < 0.25
