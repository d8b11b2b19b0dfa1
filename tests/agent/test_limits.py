"""When an agent ends though it has not said that it is done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from concur_batch.agent.limits import Bound, Budget, cut
from concur_batch.agent.tally import Tally
from concur_batch.workload.schema import Limits

LIMITS = Limits(turns=5, output_tokens=100, active_seconds=30.0, wall_seconds=60.0)
BUDGET = Budget(LIMITS, max_tokens=40, context_tokens=1000, kv_budget_tokens=500, deadline_seconds=90.0)
FREE = Budget(Limits(turns=5), max_tokens=40, context_tokens=1000, kv_budget_tokens=None, deadline_seconds=None)


def reason(
    budget: Budget = BUDGET,
    tally: Tally | None = None,
    history_tokens: int = 10,
    pool_tokens: int | None = 800,
    admitted_seconds: float | None = 20.0,
    now_seconds: float = 25.0,
) -> tuple[str, str] | None:
    ending = budget.over(tally or Tally(), history_tokens, pool_tokens, admitted_seconds, now_seconds)
    return None if ending is None else (ending.status, ending.reason)


def test_each_limit_ends_an_agent_exactly_when_it_is_reached() -> None:
    assert reason() is None
    assert reason(tally=Tally(turns=4)) is None
    assert reason(tally=Tally(turns=5)) == ("limit", "turns")
    assert reason(FREE, history_tokens=999, pool_tokens=None) is None
    assert reason(FREE, history_tokens=1000, pool_tokens=None) == ("limit", "context")
    assert reason(FREE, history_tokens=799) is None
    assert reason(FREE, history_tokens=800) == ("oversized", "pool")
    assert reason(history_tokens=500) is None
    assert reason(history_tokens=501) == ("limit", "kv_budget")
    assert reason(tally=Tally(output_tokens=99)) is None
    assert reason(tally=Tally(output_tokens=100)) == ("limit", "output_tokens")
    assert reason(tally=Tally(generation_seconds=20.0, tool_seconds=9.9, paused_seconds=99.0)) is None
    assert reason(tally=Tally(generation_seconds=20.0, tool_seconds=10.0)) == ("limit", "active_seconds")
    assert reason(now_seconds=79.9) is None
    assert reason(now_seconds=80.0) == ("limit", "wall_seconds")
    assert reason(now_seconds=89.9, admitted_seconds=None) is None  # it has waited all the time
    assert reason(now_seconds=90.0, admitted_seconds=None) == ("limit", "deadline")


def test_without_limits_an_agent_goes_on() -> None:
    old = Tally(output_tokens=10**9, generation_seconds=1e9)
    assert reason(FREE, old, history_tokens=999, pool_tokens=None, now_seconds=1e9) is None


@pytest.mark.parametrize(
    ("budget", "history_tokens", "pool_tokens", "bound"),
    [
        (BUDGET, 10, 800, Bound(40, "length")),
        (BUDGET, 970, None, Bound(30, "context")),
        (replace(BUDGET, max_tokens=200), 10, 800, Bound(90, "output_tokens")),
        (BUDGET, 790, 800, Bound(10, "pool")),
        (BUDGET, 820, 800, Bound(1, "pool")),  # the pool has shrunk: the engine refuses the prompt and says so
    ],
)
def test_the_next_output_is_bounded_by_the_nearest_limit(
    budget: Budget, history_tokens: int, pool_tokens: int | None, bound: Bound
) -> None:
    assert budget.next_output(Tally(output_tokens=10), history_tokens, pool_tokens) == bound
    ending = cut(bound)
    assert (ending.status, ending.reason) == (("oversized", "pool") if bound.name == "pool" else ("limit", bound.name))
