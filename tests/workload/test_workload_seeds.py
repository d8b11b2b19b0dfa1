"""Seeds and names of agents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from concur_batch.workload.seeds import agent_id, agent_seed

# Checked against coreutils: printf '0\nfix-median-01/0' | b2sum -l 64, without the last 33 bits.
SEEDS = [808548976, 1748160888, 277885937]

names = st.text(min_size=1, max_size=200)
agents = st.tuples(st.integers(0, 2**40), names, st.integers(0, 10_000))


@given(agents)
def test_a_seed_is_31_bits_and_depends_on_nothing_else(agent: tuple[int, str, int]) -> None:
    assert 0 <= agent_seed(*agent) < 2**31
    assert agent_seed(*agent) == agent_seed(*agent)


def test_seeds_are_the_same_on_every_machine() -> None:
    assert [agent_seed(0, "fix-median-01", sample) for sample in range(3)] == SEEDS
    assert agent_seed(1, "fix-median-01", 0) not in SEEDS


def test_seeds_of_a_batch_are_as_distinct_as_31_random_bits() -> None:
    """20,000 draws of 2**31: 0.09 pairs are expected to collide, and more than 5 in one of 10**9 batches at most."""
    seeds = [agent_seed(0, f"task-{task}", sample) for task in range(2_500) for sample in range(8)]
    assert len(set(seeds)) >= len(seeds) - 5
    assert abs(sum(seeds) / len(seeds) / 2**31 - 0.5) < 0.02


@given(st.lists(st.tuples(names, st.integers(0, 999)), unique=True, min_size=2, max_size=6))
def test_agents_have_ids_of_their_own(pairs: list[tuple[str, int]]) -> None:
    ids = [agent_id(*pair) for pair in pairs]
    assert len(set(ids)) == len(pairs)
