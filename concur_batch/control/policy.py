"""What a policy is: it gives one window its capacity. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from concur_batch.control.law import Branch
from concur_batch.control.load import Load
from concur_batch.control.room import Room
from concur_batch.engine.signals import Sample


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a control period decided: the capacity before and after (None: unbounded), the branch and its reason; and
    the room in tokens, where the policy bounds that."""

    before: int | None
    after: int | None
    branch: Branch
    reason: str
    room: Room | None = None


class Policy(Protocol):
    """Gives one window its capacity: at the start, and then once a period."""

    def start(self, places_held: int, pool_tokens: int | None) -> Verdict:
        """The first capacity; `places_held` is above zero where a controller takes over a running batch."""
        ...

    def step(self, capacity: int | None, sample: Sample, load: Load) -> Verdict:
        """The capacity for the next period."""
        ...

    def adopt(self, earlier: Policy) -> None:
        """Go on from where a policy of the same kind has come to: the settings have changed in the middle of a run."""
        ...
