"""What an export came to, in figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Volume:
    """Of one split. `tokens` are those of whole histories, `sampled_tokens` those that the model has made."""

    trajectories: int = 0
    records: int = 0
    turns: int = 0
    tokens: int = 0
    sampled_tokens: int = 0
    files: int = 0
    size_bytes: int = 0

    def add(self, agent: Mapping[str, Any], records: int) -> None:
        """Count a trajectory that is kept, by its final row."""
        self.trajectories += 1
        self.records += records
        self.turns += agent["turns"]
        self.tokens += agent["context_tokens"]
        self.sampled_tokens += agent["output_tokens"]


@dataclass(slots=True)
class Outcome:
    """`ended` agents have a final row: each is kept, or is in `dropped` once, under the reason that came first.

    `not_ended` are the agents without such a row, by run. `report` is what the format has seen.
    """

    splits: dict[str, Volume]
    ended: int = 0
    not_ended: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    report: dict[str, int] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        """Trajectories."""
        return sum(volume.trajectories for volume in self.splits.values())

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "kept": self.kept}
