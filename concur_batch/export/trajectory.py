"""One agent's trajectory, as an export format is given it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concur_batch.agent.formats.action import Call
    from concur_batch.engine.protocol import TokenIds
    from tools_env.spec import ToolResult

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: its row of `turns` without the id lists, those as arrays, and its calls with what they returned."""

    row: Row
    input_delta_ids: TokenIds
    output_ids: TokenIds
    output_logprobs: Sequence[float] | None
    calls: Sequence[tuple[Call, ToolResult]]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A final row of `agents`, the turns of that attempt from the first on, and the run that they are of."""

    run: str
    agent: Row
    turns: Sequence[Turn]
