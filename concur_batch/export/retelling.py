"""What the formats of messages share: a trajectory's dialogue, checked against its ids, in parts where its history was
rewritten. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concur_batch.export.columns import source_of
from concur_batch.export.dialogue import ChatMessage, Dialogue, Dialogues
from concur_batch.export.fidelity import Rendering
from concur_batch.export.form import Unfit
from concur_batch.export.history import SEGMENTS, WAS_REWRITTEN, Rewritten, history_ids, segments, unforeseen, whole
from concur_batch.export.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Part:
    """The messages up to the last answer of a segment. `answers` are the places of the segment's own answers; those
    before them belong to earlier segments, and are what this one was told. `texts` are what the model wrote for each
    answer in `messages`. `source` are the values of SOURCE."""

    messages: Sequence[ChatMessage]
    answers: Sequence[int]
    texts: Sequence[str]
    tools: Sequence[Mapping[str, Any]] | None
    source: Mapping[str, Any]


class Retelling:
    """Tells trajectories of one run again. `counts` is what was seen, for a form's report."""

    def __init__(self, dialogues: Dialogues, rendering: Rendering, rewritten: Rewritten) -> None:
        self._dialogues = dialogues
        self._rendering = rendering
        self._rewritten = rewritten
        self.counts: Counter[str] = Counter()

    def parts(self, trajectory: Trajectory) -> Iterator[Part]:
        """One part, or several where the history was rewritten. Raises Unfit."""
        turns = whole(trajectory)
        dialogue = self._dialogues.of(trajectory)
        self._compare(trajectory, dialogue)
        cuts = [*unforeseen(turns), *self._rendering.rewritten(dialogue)]
        found = segments(len(turns), cuts)
        if cuts:
            self.counts[WAS_REWRITTEN] += 1
            if self._rewritten == "drop":
                raise Unfit(WAS_REWRITTEN)
            self.counts[SEGMENTS] += len(found)
        for number, part in enumerate(found):
            yield Part(
                dialogue.messages[: dialogue.answers[part[-1]] + 1],
                dialogue.answers[part.start : part.stop],
                dialogue.texts[: part.stop],
                dialogue.tools,
                source_of(trajectory, number, part[-1]),
            )

    def _compare(self, trajectory: Trajectory, dialogue: Dialogue) -> None:
        if any(turn.row["ids_estimated"] for turn in trajectory.turns):
            self.counts["not rendered for comparison, since the ids are estimates"] += 1
            return
        difference = self._rendering.difference(dialogue, history_ids(trajectory.turns).tolist())
        self.counts["rendered as recorded" if difference is None else f"rendered otherwise: {difference}"] += 1
