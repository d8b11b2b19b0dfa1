"""The simulated engine that a workload describes, in the simulator's own terms. Pure."""

from __future__ import annotations

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.workload.schema import SimulatedEngine


def engine_config(engine: SimulatedEngine) -> EngineConfig:
    """Its sizes. Raises pydantic's ValidationError where they do not go together."""
    return EngineConfig(
        pool_tokens=engine.pool_tokens,
        page_size=engine.page_size,
        context_tokens=engine.context_tokens,
        chunked_prefill_tokens=engine.chunked_prefill_tokens,
        max_running_requests=engine.max_running_requests,
        sessions=engine.sessions,
    )


def cost_model(engine: SimulatedEngine) -> CostModel:
    """Its costs, in simulated seconds."""
    return CostModel(**engine.cost.model_dump())
