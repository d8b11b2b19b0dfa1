"""What `make bench-simulator` simulates; its seconds are nobody's business here."""

from __future__ import annotations

import pytest
from rich.console import Console

from concur_batch.bench.simulator import SYSTEMS, Cost, make_plans, measure, show


@pytest.mark.parametrize("turns", [6, 48])
def test_contexts_end_near_16_000_tokens_however_many_turns(turns: int) -> None:
    contexts = [plan.tokens + 500 for plan in make_plans(50, turns, seed=1)]
    assert sum(contexts) / len(contexts) == pytest.approx(16_000, rel=0.05)
    assert {len(plan.turns) for plan in make_plans(5, turns, seed=1)} == {turns}
    assert make_plans(5, turns, seed=1) == make_plans(5, turns, seed=1) != make_plans(5, turns, seed=2)


def test_a_row_a_run() -> None:
    costs = [measure(system, 3, 4) for system in SYSTEMS]
    assert [(cost.system, cost.agents, cost.turns) for cost in costs] == [(system.name, 3, 4) for system in SYSTEMS]
    assert all(cost.batch_seconds > 0 for cost in costs)
    console = Console(width=120, record=True)
    show(console, "title", [Cost("none", 1000, 10, 2.0, 77.0)])
    row = next(line for line in console.export_text().splitlines() if "none" in line)
    assert row.replace("│", " ").split() == ["none", "1,000", "10", "2.00", "5,000", "200", "77"]
