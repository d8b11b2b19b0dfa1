"""What a simulated batch is made of: agents whose work is decided beforehand, and engines. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel


@dataclass(frozen=True, slots=True)
class Turn:
    """A generation: `new_tokens` come before it (the agent's own prompt, or an observation), `output_tokens` are what
    it says, and then a tool runs for `tool_seconds`; after the last turn of a plan none does."""

    new_tokens: int
    output_tokens: int
    tool_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What one agent does, under whatever control; `agent` is unique in a batch, and it has at least one turn. Agents
    with the same `prompt`, a name for it, begin with the same tokens before their first turn, and with as many."""

    agent: str
    turns: tuple[Turn, ...]
    prompt: str | None = None

    @property
    def tokens(self) -> int:
        """Of its whole history, without what is shared."""
        return sum(turn.new_tokens + turn.output_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """An engine with one KV pool. It is gone within `outage_seconds` [from, to), and then back with an empty cache."""

    config: EngineConfig
    cost: CostModel = field(default_factory=CostModel)
    outage_seconds: tuple[float, float] | None = None
