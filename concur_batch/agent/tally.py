"""What an agent has done so far, summed over its turns. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Tally:
    """Sums over an agent's turns; the columns of the same names in `agents`.

    Of what an engine may not tell, the sum is over the turns that tell it, and None where none does.
    """

    turns: int = 0
    tool_calls: int = 0
    malformed_turns: int = 0
    pauses: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_device_tokens: int | None = None
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0
    first_tokens: int | None = None
    recomputed_tokens: int | None = None
    rounding_tokens: int | None = None
    retractions: int | None = None
    pending_seconds: float = 0.0
    paused_seconds: float = 0.0
    queue_seconds: float = 0.0
    generation_seconds: float = 0.0
    tool_queue_seconds: float = 0.0
    tool_seconds: float = 0.0

    def add(self, row: Mapping[str, Any], tool_calls: int) -> None:
        """Add a turn by its row, and the number of its calls."""
        self.turns += 1
        self.tool_calls += tool_calls
        for name in SUMMED:
            if row[name] is not None:
                setattr(self, name, (getattr(self, name) or 0) + row[name])

    @property
    def active_seconds(self) -> float:
        """Time that counts against the agent's own budget: pauses and queues do not."""
        return self.generation_seconds + self.tool_seconds


SUMMED = tuple(name for name in Tally.__slots__ if name not in ("turns", "tool_calls", "malformed_turns", "pauses"))
"""The columns of a turn's row that are summed up."""
