"""The plans of a batch have the lengths and tool times of the trajectories that a replay would have."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.bench.batch import simulate_batch
from concur_batch.bench.plan import EnginePlan, Plan
from concur_batch.bench.plans import drawn_load, replayed_load
from concur_batch.bench.variation import Variation, perturbed, seeded
from concur_batch.driver.replay import drawn_agents
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.workload.schema import AgentCap, Synthetic, Trajectories

TOKENIZER = load_tokenizer(Path(__file__).parents[2] / "workloads" / "demo_model")


def figures(plan: Plan) -> list[tuple[int, float]]:
    return [(turn.output_tokens, turn.tool_seconds) for turn in plan.turns]


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(0, 40), st.integers(0, 5), st.sampled_from([(0.0, 0.0), (0.1, 9.0)]))
def test_drawn_plans_are_those_of_the_drawn_trajectories(
    agents: int, shared: int, seed: int, tool_seconds: tuple[float, float]
) -> None:
    section = Synthetic(
        agents=agents, turns=(1, 4), shared_tokens=shared, prompt_tokens=(20, 30), tool_seconds=tool_seconds, seed=seed
    )
    specs = drawn_agents(section, TOKENIZER)
    drawn, replayed = drawn_load(section, [spec.agent_id for spec in specs]), replayed_load(specs)
    assert drawn.shared_tokens == shared
    assert replayed.shared_tokens >= shared  # two random texts may begin with the same token
    more = replayed.shared_tokens - shared
    for ours, theirs in zip(drawn.plans, replayed.plans, strict=True):
        assert ours.agent == theirs.agent
        assert figures(ours) == figures(theirs)
        news = [turn.new_tokens for turn in theirs.turns]
        assert [turn.new_tokens for turn in ours.turns] == [news[0] + more, *news[1:]]


def test_samples_of_a_task_find_their_prompt_in_the_cache() -> None:
    section = Trajectories(turns=(1, 1), shared_tokens=10, prompt_tokens=(50, 90), output_tokens=(5, 5))
    names, tasks = ["a/0", "b/0", "a/1", "b/1"], ["a", "b", "a", "b"]
    load = drawn_load(section, names, tasks)
    lengths = [plan.turns[0].new_tokens for plan in load.plans]
    assert lengths[:2] == lengths[2:]
    one_by_one = AgentCap(policy="agent_cap", cap=1)
    engines = {"0": EnginePlan(EngineConfig(pool_tokens=5000))}
    rows = simulate_batch(load.plans, one_by_one, engines, load.shared_tokens).agents
    # The last token of a prompt is always computed.
    assert [row["cached_device_tokens"] for row in rows] == [0, 10, 9 + lengths[0], 9 + lengths[1]]
    apart = drawn_load(section, names)
    assert {plan.prompt for plan in apart.plans} == {None}
    rows = simulate_batch(apart.plans, one_by_one, engines, apart.shared_tokens).agents
    assert [row["cached_device_tokens"] for row in rows] == [0, 10, 10, 10]


def test_replayed_agents_share_a_prompt_that_is_the_same() -> None:
    section = Synthetic(agents=3, shared_tokens=0, prompt_tokens=(20, 30))
    first, second, third = drawn_agents(section, TOKENIZER)
    again = dataclasses.replace(second, agent_id="again/0", trajectory=first.trajectory)
    prompts = [plan.prompt for plan in replayed_load([first, again, second, third]).plans]
    assert prompts[0] == prompts[1]
    assert len(set(prompts)) == 3


def test_prompts_that_are_all_the_same_are_shared_whole() -> None:
    section = Synthetic(agents=1, shared_tokens=5, prompt_tokens=(20, 20))
    (spec,) = drawn_agents(section, TOKENIZER)
    load = replayed_load([spec])
    assert load.shared_tokens == 25
    assert load.plans[0].turns[0].new_tokens == 0


def test_a_variation_changes_what_it_names_and_nothing_else() -> None:
    cost = CostModel(1.0, 2.0, 3.0, 4.0, 5.0, prefill_step_seconds=6.0, weights_seconds=7.0, load_seconds_per_token=8.0)
    assert Variation("as it is").of_cost(cost) == cost
    faster = Variation("x", prefill=0.5, host_link=2.0).of_cost(cost)
    assert faster == CostModel(
        0.5, 1.0, 3.0, 4.0, 5.0, prefill_step_seconds=3.0, weights_seconds=7.0, load_seconds_per_token=16.0
    )
    section = Synthetic(agents=2, turns=(3, 3))
    names = ["a", "b"]
    slow = Variation("y", tool_times=1.2).of_load(lambda seed: drawn_load(section, names))
    for ours, theirs in zip(slow.plans, drawn_load(section, names).plans, strict=True):
        assert [turn.tool_seconds for turn in ours.turns] == [turn.tool_seconds * 1.2 for turn in theirs.turns]
        assert [turn.new_tokens for turn in ours.turns] == [turn.new_tokens for turn in theirs.turns]


def test_the_variations_change_one_thing_at_a_time_both_ways() -> None:
    assert [each.seed for each in seeded(3)] == [0, 1, 2]
    assert [each.name for each in perturbed(host_link=False)] == [
        "as recorded", "tool times -20%", "prefill -20%", "decode -20%", "tool times +20%", "prefill +20%",
        "decode +20%",
    ]  # fmt: skip
    changed = [(each.tool_times, each.prefill, each.decode, each.host_link) for each in perturbed(host_link=True)]
    assert all(sum(factor != 1.0 for factor in each) == 1 for each in changed[1:])
    assert len(changed) == 9
