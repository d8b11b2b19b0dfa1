"""The very ids that the engine saw and sampled, with their loss mask. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from concur_batch.agent.encoding import TokenIds
from concur_batch.agent.template import TemplateError
from concur_batch.export.columns import SOURCE, source_of
from concur_batch.export.dialogue import Dialogue, Dialogues
from concur_batch.export.fidelity import Rendering
from concur_batch.export.form import Record, Unfit
from concur_batch.export.history import SEGMENTS, WAS_REWRITTEN, Rewritten, segments, unforeseen, whole
from concur_batch.export.trajectory import Trajectory, Turn

_IDS = [
    pa.field("input_ids", pa.list_(pa.int32()), nullable=False),
    # The loss mask, under the name by which transformers and TRL know it: 1 for what was sampled, a sampled stop token
    # too; 0 for prompts, observations and all that the template adds.
    pa.field("assistant_masks", pa.list_(pa.int8()), nullable=False),
    pa.field("turn_starts", pa.list_(pa.int32()), nullable=False),  # where in input_ids each turn's sampled ids begin
    pa.field("ids_estimated", pa.bool_(), nullable=False),  # the engine took messages: ids are our tokenizer's
]
_LOGPROBS = pa.field("logprobs", pa.list_(pa.float32()))  # one for each 1 of the mask, as the engine sampled it


class Tokens:
    """A record a trajectory; where the engine has seen a history that does not go on from the turn before, a record for
    each part that does.

    Where ids are estimates, `telling` makes the prompt with which a later part begins. Without it, and where exact ids
    do not add up, that prompt is not known, and its turns have no record.
    """

    def __init__(
        self, rewritten: Rewritten, *, logprobs: bool = False, telling: tuple[Dialogues, Rendering] | None = None
    ) -> None:
        self.schema = pa.schema([*SOURCE, *_IDS, *([_LOGPROBS] if logprobs else [])])
        self._rewritten = rewritten
        self._logprobs = logprobs
        self._telling = telling
        self._counts: Counter[str] = Counter()

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """See Form."""
        turns = whole(trajectory)
        estimated = any(turn.row["ids_estimated"] for turn in turns)
        self._counts["ids are estimates"] += estimated
        cuts = set(unforeseen(turns))
        dialogue: Dialogue | None = None
        if estimated and self._telling is not None:
            dialogues, rendering = self._telling
            dialogue = dialogues.of(trajectory)
            cuts |= set(rendering.rewritten(dialogue))
        if cuts:
            self._counts[WAS_REWRITTEN] += 1
            if self._rewritten == "drop":
                raise Unfit(WAS_REWRITTEN)
        found: list[Record] = []
        for number, part in enumerate(segments(len(turns), cuts)):
            prompt = self._prompt(dialogue, part.start) if part.start in cuts else turns[0].input_delta_ids
            if prompt is None:
                self._counts["turns without a known prompt"] += len(part)
                continue
            self._counts[SEGMENTS] += bool(cuts)
            source = source_of(trajectory, number, part[-1])
            found.append(source | self._ids(prompt, turns[part.start : part.stop], estimated))
        if not found:
            raise Unfit("its prompt is not known")
        return found

    def report(self) -> Mapping[str, int]:
        """See Form."""
        return +self._counts

    def _prompt(self, dialogue: Dialogue | None, turn: int) -> TokenIds | None:
        """As a chat server saw it, by our template."""
        if dialogue is None or self._telling is None:
            return None
        try:
            return self._telling[1].prompt_ids(dialogue, turn)
        except TemplateError:
            return None

    def _ids(self, prompt: TokenIds, turns: Sequence[Turn], estimated: bool) -> dict[str, Any]:
        pieces: list[TokenIds] = []
        for turn in turns:
            pieces += turn.input_delta_ids if pieces else prompt, turn.output_ids
        lengths = [len(piece) for piece in pieces]
        sampled = np.tile(np.array([0, 1], np.int8), len(turns))
        columns = {
            "input_ids": np.concatenate(pieces),
            "assistant_masks": np.repeat(sampled, lengths),
            "turn_starts": np.cumsum(lengths)[::2].astype(np.int32),
            "ids_estimated": estimated,
        }
        if self._logprobs:
            columns["logprobs"] = None if estimated else _logprobs(turns)
        return columns


def _logprobs(turns: Sequence[Turn]) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """Those of all sampled ids; None where the run has not recorded them."""
    found = [turn.output_logprobs for turn in turns if turn.output_logprobs is not None]
    told = np.concatenate([np.asarray(part, np.float32) for part in found]) if found else np.empty(0, np.float32)
    return told if found and len(told) == sum(len(turn.output_ids) for turn in turns) else None
