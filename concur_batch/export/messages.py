"""Conversations as OpenAI and TRL have them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from concur_batch.export.columns import JSON, SOURCE
from concur_batch.export.dialogue import ChatMessage
from concur_batch.export.form import Record
from concur_batch.export.retelling import Part, Retelling
from concur_batch.export.trajectory import Trajectory


class Messages:
    """A record a trajectory: all its messages, and the tools where the template is given them. Of the parts of a
    rewritten history each is a record; answers that are of an earlier one have `weight` 0."""

    schema = pa.schema([*SOURCE, pa.field("messages", JSON, nullable=False), pa.field("tools", JSON)])

    def __init__(self, retelling: Retelling) -> None:
        self._retelling = retelling

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """See Form."""
        return [
            {**part.source, "messages": weighted(part), "tools": part.tools}
            for part in self._retelling.parts(trajectory)
        ]

    def report(self) -> Mapping[str, int]:
        """See Form."""
        return self._retelling.counts


def weighted(part: Part) -> list[ChatMessage]:
    """The messages of a part, with the answers that are not its own weighted as OpenAI's fine-tuning does."""
    own = frozenset(part.answers)
    return [
        message if place in own or message["role"] != "assistant" else message | {"weight": 0}
        for place, message in enumerate(part.messages)
    ]
