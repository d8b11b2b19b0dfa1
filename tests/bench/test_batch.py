"""The simulated batch itself: its arithmetic by hand, its accounts by property, and what control must leave alone."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_batches import NONE, agent_cap, concur, make_plans, run

from concur_batch.bench.agent import make_agents
from concur_batch.bench.batch import BatchResult, simulate_batch
from concur_batch.bench.plan import EnginePlan, Plan, Turn
from concur_batch.bench.same_work import same_work
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.request import Completion
from concur_batch.workload.schema import AnyControl, Concur, Extensions, RequestCap, Steady

# 0.01 s a prompt token, 0.1 s an output token after the first, which comes with the prompt.
PLAIN_COST = CostModel(0.01, 0.0, 0.1, 0.0, 0.0)
SIZES = {"0": 100, "1": 1000}
TWO_TURNS = (Turn(10, 3, tool_seconds=1.0), Turn(5, 2))


def small(control: AnyControl, *plans: Plan, shared_tokens: int = 0, page_size: int = 1) -> BatchResult:
    config = EngineConfig(pool_tokens=1000, page_size=page_size)
    return simulate_batch(plans, control, {"0": EnginePlan(config, PLAIN_COST)}, shared_tokens)


def test_one_agent_by_hand() -> None:
    """Turn 1: 10 tokens, then 2 decode steps: 0.3 s. The tool: 1 s. Turn 2: of its 18 tokens all but the 5 new ones and
    the newest output are cached; 6 tokens and a decode step: 0.16 s."""
    result = small(NONE, Plan("a", TWO_TURNS))
    (row,) = result.agents
    assert result.seconds == pytest.approx(1.46)
    assert result.scheduled == [(0.0, "a/0"), (pytest.approx(1.3), "a/1")]
    assert (row["turns"], row["tool_calls"], row["input_tokens"], row["output_tokens"]) == (2, 1, 10 + 18, 3 + 2)
    assert (row["cached_device_tokens"], row["recomputed_tokens"]) == (12, 0)
    assert (row["status"], row["ended_seconds"]) == ("finished", result.seconds)


def test_whole_pages_alone_can_be_cached_and_rounding_is_not_recomputation() -> None:
    (row,) = small(NONE, Plan("a", TWO_TURNS), page_size=8).agents
    assert (row["cached_device_tokens"], row["recomputed_tokens"]) == (8, 0)


def test_agents_share_the_shared_prompt_and_nothing_else() -> None:
    first, second = small(agent_cap(1), Plan("a", TWO_TURNS), Plan("b", TWO_TURNS), shared_tokens=7).agents
    assert first["cached_device_tokens"] == 7 + 12
    assert second["cached_device_tokens"] == 7 + 7 + 12


def test_a_generation_tells_how_fast_its_prompt_was_computed() -> None:
    agent, ids = make_agents([Plan("a", TWO_TURNS)], 0)["a"], np.zeros(1, np.int32)
    ended = Completion("a/0", ids, "stop", None, 400, 90, 0, 0.0, 1.0, 3.0, 4.0, host_cached_tokens=10)
    assert agent.prefill_rate(ended) == 300 / 2
    assert agent.prefill_rate(replace(ended, first_token_seconds=None)) == 0


@pytest.mark.parametrize(("sessions", "recomputed_tokens"), [(False, 401), (True, 0)])
def test_with_session_tags_who_has_ended_makes_room_for_others(sessions: bool, recomputed_tokens: int) -> None:
    """Of `waits` and `ends`, 402 tokens each, `waits` has come first and is used less recently. `comes` takes room
    when `ends` has ended, and before `waits` goes on."""
    turns = {
        "waits": (Turn(400, 2, tool_seconds=60.0), Turn(5, 2)),
        "ends": (Turn(400, 2),),
        "comes": (Turn(10, 2, tool_seconds=20.0), Turn(400, 2)),
    }
    engine = EnginePlan(EngineConfig(pool_tokens=1000, sessions=sessions), PLAIN_COST)
    result = simulate_batch([Plan(*plan) for plan in turns.items()], NONE, {"0": engine})
    assert [row["recomputed_tokens"] for row in result.agents] == [recomputed_tokens, 0, 0]
    assert result.counters["0"].evicted > 0


def test_who_has_no_place_waits_for_the_end_of_one_that_has() -> None:
    result = small(agent_cap(1), Plan("a", TWO_TURNS), Plan("b", TWO_TURNS))
    first, second = result.agents
    assert first["pending_seconds"] == 0
    assert second["pending_seconds"] == first["ended_seconds"]
    assert [rid for _, rid in result.scheduled] == ["a/0", "a/1", "b/0", "b/1"]  # the tool wait keeps its place


def test_a_request_cap_lends_the_place_of_a_tool_wait() -> None:
    """c runs from 0.6 s to 1.8 s; a comes back at 1.3 s and b at 1.6 s, 0.36 s before the end of a's second turn."""
    plans = [Plan("a", TWO_TURNS), Plan("b", TWO_TURNS), Plan("c", (Turn(100, 3),))]
    result = small(RequestCap(policy="request_cap", cap=1), *plans)
    assert [rid for _, rid in result.scheduled] == ["a/0", "b/0", "c/0", "a/1", "b/1"]
    assert [row["pending_seconds"] for row in result.agents] == [0, pytest.approx(0.3), pytest.approx(0.6)]
    assert [row["queue_seconds"] for row in result.agents] == [pytest.approx(0.5), pytest.approx(0.36), 0]
    assert [row["pauses"] for row in result.agents] == [0, 0, 0]


def test_a_pool_that_is_gone_is_found_down_and_comes_back_empty() -> None:
    """The request of 0.0 s dies at 0.2 s, and the reading of 2 s is the first to be answered, after two that are not:
    the whole prompt again, 0.3 s."""
    engine = EnginePlan(EngineConfig(pool_tokens=1000), PLAIN_COST, outage_seconds=(0.2, 2.5))
    result = simulate_batch([Plan("a", (Turn(10, 3),))], NONE, {"0": engine})
    (row,) = result.agents
    assert (row["turns"], row["input_tokens"], row["pauses"]) == (1, 10, 1)
    assert row["paused_seconds"] == pytest.approx(3.0 - 0.2)
    assert result.seconds == pytest.approx(3.3)
    assert [row["pool_state"] for row in result.control] == ["suspect", "suspect", "open", "open"]


@pytest.mark.parametrize(
    "control",
    [NONE, agent_cap(4), RequestCap(policy="request_cap", cap=4), Steady(policy="steady", initial_window=8)],
    ids=lambda control: control.policy,
)
def test_an_agent_that_does_not_fit_its_pool_goes_on_in_a_larger_one(control: AnyControl) -> None:
    """Of two like agents, one comes to the small pool of 100 tokens. A first prompt of 120 tokens, a result of 120 and
    an output of 120 are too large for it; and for the larger pool of 1,000, the last agent's result is."""
    engines = {name: EnginePlan(EngineConfig(pool_tokens=tokens), PLAIN_COST) for name, tokens in SIZES.items()}
    kinds = {"starts": (Turn(120, 3),), "grows": (Turn(10, 3, 1.0), Turn(120, 3)), "talks": (Turn(10, 120),)}
    plans = [Plan(f"{kind}{number}", turns) for kind, turns in kinds.items() for number in range(2)]
    result = simulate_batch([*plans, Plan("never", (Turn(10, 3), Turn(1000, 3)))], control, engines)
    assert [row["status"] for row in result.agents] == ["finished"] * 6 + ["oversized"]
    assert [row["turns"] for row in result.agents] == [1, 1, 2, 2, 1, 1, 1]
    assert result.counters["0"].decode > 0
    assert max(row["evicted_tokens"] or 0 for row in result.control if row["pool"] == "1") < 1000
    assert [row["places_held"] for row in result.control[-2:]] == [0, 0]


def test_an_output_that_a_small_pool_cuts_is_made_anew_and_counted_once_for_the_agent() -> None:
    """In the small pool it comes to 88 of its 120 tokens. It gives its place back, and asks again a period later."""
    engines = {name: EnginePlan(EngineConfig(pool_tokens=tokens), PLAIN_COST) for name, tokens in SIZES.items()}
    (row,) = (result := simulate_batch([Plan("a", (Turn(10, 120),))], NONE, engines)).agents
    assert (row["status"], row["input_tokens"], row["output_tokens"], row["pauses"]) == ("finished", 10, 120, 1)
    assert [rid for _, rid in result.scheduled] == ["a/0", "a/0"]
    assert sum(row["request_input_tokens"] for row in result.control) == 20  # the engines have seen it twice


def test_a_batch_that_can_never_go_on_is_told() -> None:
    engine = EnginePlan(EngineConfig(pool_tokens=1000), PLAIN_COST, outage_seconds=(0.2, float("inf")))
    with pytest.raises(RuntimeError, match="1 agents wait"):
        simulate_batch([Plan("a", (Turn(10, 3),))], NONE, {"0": engine})


def test_a_tool_of_hours_is_no_deadlock() -> None:
    slow = (Turn(10, 3, tool_seconds=10_000.0), Turn(5, 2))
    assert small(agent_cap(1), Plan("a", slow), Plan("b", TWO_TURNS)).agents[0]["turns"] == 2


# Composition


@pytest.mark.parametrize(
    "control",
    [
        concur(initial_window=32),  # wide open; no sample of this load is one that cuts
        concur(initial_window=16, max_window=16),  # as many places as agents, never more
        agent_cap(16),
        Steady(policy="steady", initial_window=16),
        RequestCap(policy="request_cap", cap=16),
    ],
    ids=lambda control: control.policy,
)
def test_a_window_that_never_binds_leaves_every_batch_as_it_is_without_control(control: AnyControl) -> None:
    """The pool holds all 16 histories (about 60,000 tokens), so that the law never cuts."""
    plans = make_plans(16)
    open_, bound = run(plans, NONE, pool_tokens=100_000), run(plans, control, pool_tokens=100_000)
    assert len(open_.scheduled) == 16 * 8
    # Readings split the decode seconds into other pieces, whose sum may differ in its last digit.
    assert asdict(bound.counters["0"]) == pytest.approx(asdict(open_.counters["0"]), rel=1e-12)
    assert not any(row["branch"] == "cut" for row in bound.control)
    assert [rid for _, rid in bound.scheduled] == [rid for _, rid in open_.scheduled]
    if control.policy != "steady":  # whose four readings a period let the seconds be summed up in other pieces
        assert bound.scheduled == open_.scheduled


def test_a_window_that_binds_does_not() -> None:
    plans = make_plans(16)
    assert run(plans, agent_cap(15)).scheduled != run(plans, NONE).scheduled


# Properties

TURNS = st.builds(Turn, st.integers(1, 60), st.integers(1, 20), st.sampled_from([0.0, 0.4, 3.0]))
PLANS = st.lists(st.lists(TURNS, min_size=1, max_size=5), min_size=1, max_size=8).map(
    lambda plans: [Plan(f"a{index}", tuple(turns)) for index, turns in enumerate(plans)]
)
EXTENSIONS = st.builds(
    Extensions,
    longest_pause_seconds=st.sampled_from([None, 2.0]),
    longest_tool_wait_seconds=st.sampled_from([None, 1.0]),
    long_request_tokens=st.sampled_from([None, 20]),
    growth_turns=st.sampled_from([None, 2]),
)


@st.composite
def controls(draw: st.DrawFn) -> AnyControl:
    policy = draw(st.sampled_from([NONE, agent_cap(2), RequestCap(policy="request_cap", cap=2), Concur, Steady]))
    if isinstance(policy, type):
        window = draw(st.integers(1, 8))
        policy = policy(policy=policy.__name__.lower(), initial_window=window)
    return policy.model_copy(update={"extensions": draw(EXTENSIONS)})


@st.composite
def pools(draw: st.DrawFn) -> dict[str, EnginePlan]:
    """One or two, in which each agent fits alone; with two, one may fail for a while."""
    config = EngineConfig(pool_tokens=draw(st.integers(520, 900)), page_size=draw(st.sampled_from([1, 4])))
    engines = {"0": EnginePlan(config, PLAIN_COST)}
    if draw(st.booleans()):
        engines["1"] = EnginePlan(config, PLAIN_COST, draw(st.sampled_from([None, (0.5, 1.2), (0.5, 6.0)])))
    return engines


@settings(max_examples=150, deadline=None)
@given(plans=PLANS, control=controls(), engines=pools(), shared_tokens=st.sampled_from([0, 30]))
def test_everybody_does_the_planned_work_whatever_the_control(
    plans: list[Plan], control: AnyControl, engines: dict[str, EnginePlan], shared_tokens: int
) -> None:
    result = simulate_batch(plans, control, engines, shared_tokens)
    assert simulate_batch(plans, control, engines, shared_tokens) == result
    for plan, row in zip(plans, result.agents, strict=True):
        assert (row["status"], row["turns"], row["tool_calls"]) == ("finished", len(plan.turns), len(plan.turns) - 1)
        assert row["output_tokens"] == sum(turn.output_tokens for turn in plan.turns)
        assert row["input_tokens"] == sum(prompts(plan, shared_tokens))
    assert same_work(result.agents, simulate_batch(plans, NONE, engines, shared_tokens).agents).same
    assert result.seconds == max(row["ended_seconds"] for row in result.agents)
    assert sorted(rid for _, rid in result.scheduled) == sorted(
        f"{plan.agent}/{number}" for plan in plans for number in range(len(plan.turns))
    )
    check_accounts(result, len(plans), list(engines))


def prompts(plan: Plan, shared_tokens: int) -> list[int]:
    lengths, history = [], shared_tokens
    for turn in plan.turns:
        lengths.append(history + turn.new_tokens)
        history = lengths[-1] + turn.output_tokens
    return lengths


def check_accounts(result: BatchResult, agents: int, pools: list[str]) -> None:
    """The control rows tell of the same turns as the agents' rows, and nobody is left."""

    def total(rows: list[dict[str, Any]], column: str) -> float:
        return sum(row[column] for row in rows)

    for ours, theirs in (
        ("request_input_tokens", "input_tokens"),
        ("request_device_hit_tokens", "cached_device_tokens"),
        ("recomputed_tokens", "recomputed_tokens"),
    ):
        assert total(result.control, ours) == total(result.agents, theirs)
    assert total(result.control, "completed_in_period") == agents
    last = result.control[-len(pools) :]
    assert [row["pool"] for row in last] == pools
    assert total(last, "finished") == agents
    assert all(total(last, column) == 0 for column in ("places_held", "history_tokens", "marked", "adrift", "paused"))
