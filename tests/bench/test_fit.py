"""Costs fitted to turns: those of a simulated engine are found again, and what tells too little is refused."""

from __future__ import annotations

import dataclasses

import pytest

from concur_batch.bench.fit import CannotFit, fit_costs
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from tests.bench.recorded_run import RecordedAgents

COST = CostModel(
    prefill_seconds_per_token=1e-3,
    prefill_seconds_per_token_pair=4e-7,
    decode_step_seconds=0.02,
    decode_seconds_per_request=1e-3,
    decode_seconds_per_kv_token=2e-6,
    prefill_step_seconds=0.05,
)


@pytest.mark.parametrize("agents", [4, 24])
def test_the_costs_of_a_simulated_engine_are_found_again(agents: int) -> None:
    rows = RecordedAgents(agents, 8, EngineConfig(pool_tokens=40_000), COST).turns
    found = fit_costs(rows)
    assert found.turns == 8 * agents
    assert found.prefill_error < 0.05
    assert found.decode_error < 0.05
    # The terms may stand in for each other; what they come to for a typical step may not.
    for extends in ([(0, 400)], [(800, 150)], [(500, 100), (900, 200)]):
        assert found.cost.prefill_seconds(extends) == pytest.approx(COST.prefill_seconds(extends), rel=0.1)
    for requests in (2, agents // 2):
        kv_tokens = 900 * requests
        assert found.cost.decode_seconds(requests, kv_tokens) == pytest.approx(
            COST.decode_seconds(requests, kv_tokens), rel=0.1
        )


def test_the_fit_does_not_depend_on_the_order_of_the_turns_or_on_the_units_of_time() -> None:
    rows = RecordedAgents(6, 6, EngineConfig(pool_tokens=40_000), COST).turns
    found = fit_costs(rows)
    slower = [{**row, **{name: value * 3 for name, value in row.items() if name.endswith("_seconds")}} for row in rows]
    backwards, thrice = fit_costs(rows[::-1]).cost, fit_costs(slower).cost
    for name, value in dataclasses.asdict(found.cost).items():
        assert getattr(backwards, name) == pytest.approx(value)
        assert getattr(thrice, name) == pytest.approx(3 * value, rel=1e-3, abs=1e-9)


def test_engines_that_tell_no_seconds_cannot_be_fitted() -> None:
    rows = RecordedAgents(4, 4, EngineConfig(pool_tokens=40_000), COST).turns
    with pytest.raises(CannotFit, match="do not tell the engine's seconds"):
        fit_costs([{**row, "engine_prefill_seconds": None} for row in rows])
    with pytest.raises(CannotFit, match="do not tell the engine's seconds"):
        fit_costs(rows[:3])
    with pytest.raises(CannotFit, match="do not grow with their work"):
        fit_costs([{**row, "engine_prefill_seconds": 0.0, "engine_decode_seconds": 0.0} for row in rows])


def test_replicas_are_fitted_each_on_its_own_time() -> None:
    """Their prefills at the same moments do not make one piece of work."""
    one, two = (RecordedAgents(6, 6, EngineConfig(pool_tokens=40_000), COST, seed).turns for seed in (1, 2))
    both = fit_costs([*one, *({**row, "replica": "1"} for row in two)])
    assert both.cost.prefill_seconds([(500, 200)]) == pytest.approx(COST.prefill_seconds([(500, 200)]), rel=0.1)
