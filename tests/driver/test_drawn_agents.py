"""Drawn trajectories: within their distributions, decided by the seed, alike only in what they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.spec import AgentSpec
from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.agent.trajectory import Trajectory
from concur_batch.driver.replay import drawn_agents, trajectories_digest
from concur_batch.workload.schema import Synthetic

TOKENIZER = load_tokenizer(Path(__file__).parents[2] / "workloads" / "demo_model")


def spans(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(least, most), st.integers(least, most)).map(lambda pair: (min(pair), max(pair)))


SECTIONS = st.builds(
    Synthetic,
    agents=st.integers(1, 6),
    turns=spans(1, 5),
    shared_tokens=st.integers(0, 40),
    prompt_tokens=spans(1, 60),
    output_tokens=spans(1, 20),
    observation_tokens=spans(1, 60),
    tool_seconds=st.sampled_from([(0.0, 0.0), (0.5, 0.5), (0.1, 9.0)]),
    seed=st.integers(0, 3),
)


def trajectory(agent: AgentSpec) -> Trajectory:
    assert agent.trajectory is not None
    return agent.trajectory


def plain(agents: list[AgentSpec]) -> list[Any]:
    return [
        (
            agent.agent_id,
            agent.seed,
            [(step.new_ids.tolist(), step.output_tokens, step.exchanges) for step in trajectory(agent).steps],
        )
        for agent in agents
    ]


@settings(max_examples=60, deadline=None)
@given(SECTIONS)
def test_what_is_drawn_is_within_its_distribution(section: Synthetic) -> None:
    ordinary = set(TOKENIZER.ordinary_ids().tolist())
    agents = drawn_agents(section, TOKENIZER)
    assert len({agent.agent_id for agent in agents}) == section.agents
    shared = trajectory(agents[0]).steps[0].new_ids[: section.shared_tokens].tolist()
    for agent in agents:
        steps = trajectory(agent).steps
        assert section.turns[0] <= len(steps) <= section.turns[1]
        assert steps[0].new_ids[: section.shared_tokens].tolist() == shared
        sizes = [len(steps[0].new_ids) - section.shared_tokens, *(len(step.new_ids) for step in steps[1:])]
        assert section.prompt_tokens[0] <= sizes[0] <= section.prompt_tokens[1]
        assert all(section.observation_tokens[0] <= size <= section.observation_tokens[1] for size in sizes[1:])
        assert all(section.output_tokens[0] <= step.output_tokens <= section.output_tokens[1] for step in steps)
        assert [len(step.exchanges) for step in steps] == [1] * (len(steps) - 1) + [0]
        low, high = section.tool_seconds
        waits = [exchange.result.seconds for step in steps for exchange in step.exchanges]
        assert all(low * 0.999 <= seconds <= high * 1.001 for seconds in waits)
        assert ordinary.issuperset(token for step in steps for token in step.new_ids.tolist())


@settings(max_examples=30, deadline=None)
@given(SECTIONS)
def test_the_seed_decides_all_and_more_agents_change_none(section: Synthetic) -> None:
    agents = drawn_agents(section, TOKENIZER)
    more = drawn_agents(section.model_copy(update={"agents": section.agents + 2}), TOKENIZER)
    assert plain(more[: section.agents]) == plain(agents)
    assert trajectories_digest(agents[::-1]) == trajectories_digest(agents) != trajectories_digest(more)


def test_agents_differ_after_what_they_share_and_seeds_differ() -> None:
    section = Synthetic(agents=20, shared_tokens=30, prompt_tokens=(20, 20))
    agents = drawn_agents(section, TOKENIZER)
    assert len({tuple(trajectory(agent).steps[0].new_ids[30:].tolist()) for agent in agents}) == 20
    assert len({agent.seed for agent in agents}) == 20
    other = drawn_agents(section.model_copy(update={"seed": 1}), TOKENIZER)
    assert trajectories_digest(other) != trajectories_digest(agents)


def test_no_control_token_is_ordinary() -> None:
    assert TOKENIZER.control_ids.isdisjoint(TOKENIZER.ordinary_ids().tolist())
    assert len(TOKENIZER.ordinary_ids()) > 5000
