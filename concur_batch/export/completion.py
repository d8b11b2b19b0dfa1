"""Prompts and completions as TRL has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from concur_batch.export.columns import JSON, SOURCE
from concur_batch.export.form import Record
from concur_batch.export.retelling import Retelling
from concur_batch.export.trajectory import Trajectory


class PromptCompletion:
    """A record a turn: what came before it, and the one message that the model answered.

    So the loss is on what the model wrote alone, with any chat template, and a template that rewrites earlier turns
    shows each as it would be asked for. A trajectory of n turns has its beginning n times.
    """

    schema = pa.schema(
        [
            *SOURCE,
            pa.field("turn", pa.int32(), nullable=False),
            pa.field("prompt", JSON, nullable=False),
            pa.field("completion", JSON, nullable=False),
            pa.field("tools", JSON),
        ]
    )

    def __init__(self, retelling: Retelling) -> None:
        self._retelling = retelling

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """See Form."""
        answers = [(part, place) for part in self._retelling.parts(trajectory) for place in part.answers]
        return [
            {
                **part.source,
                "truncated": trajectory.turns[turn].row["action"] == "truncated",
                "turn": turn,
                "prompt": part.messages[:place],
                "completion": [part.messages[place]],
                "tools": part.tools,
            }
            for turn, (part, place) in enumerate(answers)
        ]

    def report(self) -> Mapping[str, int]:
        """See Form."""
        return self._retelling.counts
