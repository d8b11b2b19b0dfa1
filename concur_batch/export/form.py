"""What an export format is: a schema, and how a trajectory becomes records of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from concur_batch.export.trajectory import Trajectory

Record = Mapping[str, Any]


class Unfit(Exception):
    """A trajectory has no record in this format; the message is the reason under which it is counted as dropped."""


class Form(Protocol):
    """One format, made for one run: a run's own tokenizer, template and prompts stand behind it."""

    schema: pa.Schema

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """The records of one trajectory: JSON-like values that fit `schema`. Raises Unfit."""
        ...

    def report(self) -> Mapping[str, int]:
        """What was seen so far, by name: trajectories whose rendering differs, that were split, whose ids are
        estimates … For the card and the terminal."""
        ...
