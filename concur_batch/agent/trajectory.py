"""What a replayed agent does, decided beforehand: recorded once, or drawn from distributions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from concur_batch.engine.protocol import TokenIds
from tools_env.spec import ToolResult

if TYPE_CHECKING:
    from concur_batch.agent.spec import Ending


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call and what it returned; the replay waits as long as it took (`result.seconds`)."""

    name: str
    arguments: Mapping[str, Any]
    result: ToolResult


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One turn: `new_ids` come before it (the first prompt, or an observation in its template), the engine generates
    `output_tokens` of whatever it wants, and the calls follow."""

    new_ids: TokenIds
    output_tokens: int
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """At least one step, and how the agent ends after the last."""

    steps: tuple[Step, ...]
    ending: Ending

    @property
    def longest_output_tokens(self) -> int:
        """Of a step."""
        return max(step.output_tokens for step in self.steps)
