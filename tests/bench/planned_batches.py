"""Simulated batches for tests: agents with seeded plans on small pools, and what became of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from concur_batch.bench.batch import BatchResult, simulate_batch
from concur_batch.bench.plan import EnginePlan, Plan, Turn
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.workload.schema import AgentCap, AnyControl, Concur, Extensions, NoControl

# A slow engine: what is computed again weighs, as it does in method.md section 5.
COST = CostModel(
    prefill_seconds_per_token=1e-3,
    prefill_seconds_per_token_pair=1e-8,
    decode_step_seconds=0.02,
    decode_seconds_per_request=2e-4,
    decode_seconds_per_kv_token=1e-7,
)
POOL_TOKENS = 30_000
SHARED_TOKENS = 200

NONE = NoControl(policy="none")


def agent_cap(cap: int, **extensions: Any) -> AgentCap:
    return AgentCap(policy="agent_cap", cap=cap, extensions=Extensions(**extensions))


def concur(initial_window: int, max_window: int | None = None, **extensions: Any) -> Concur:
    """The published law."""
    return Concur(
        policy="concur",
        initial_window=initial_window,
        max_window=max_window,
        extensions=Extensions(**extensions),
    )


def make_plans(agents: int, turns: int = 8) -> list[Plan]:
    """Prompts of 300 tokens, observations of 200 to 600, outputs of 30 to 90, tools of 2 to 10 s; the same each time.

    A history ends at about 3,800 tokens, so that 8 of them fill the pool.
    """
    rng = random.Random(1)

    def turn(number: int) -> Turn:
        return Turn(rng.randint(200, 600) if number else 300, rng.randint(30, 90), rng.uniform(2, 10))

    return [Plan(f"a{index:03d}", tuple(turn(number) for number in range(turns))) for index in range(agents)]


def with_turn(plan: Plan, number: int, turn: Turn) -> Plan:
    """The plan with another turn in place of one of its own."""
    turns = list(plan.turns)
    turns[number] = turn
    return Plan(plan.agent, tuple(turns))


def run(plans: Sequence[Plan], control: AnyControl, pool_tokens: int = POOL_TOKENS) -> BatchResult:
    """On one pool."""
    engine = EnginePlan(EngineConfig(pool_tokens=pool_tokens), COST)
    return simulate_batch(plans, control, {"0": engine}, SHARED_TOKENS)


def recomputed_tokens(result: BatchResult) -> int:
    return sum(row["recomputed_tokens"] for row in result.agents)


def recomputed_share(result: BatchResult) -> float:
    """Of all prefill."""
    return recomputed_tokens(result) / sum(counters.prefill_compute for counters in result.counters.values())


def most(result: BatchResult, column: str) -> int:
    """The largest value in the control rows."""
    return max(row[column] for row in result.control)


def statuses(result: BatchResult) -> list[str]:
    return [row["status"] for row in result.agents]
