"""A trajectory's history as the engine has counted and seen it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from concur_batch.export.form import Unfit
from concur_batch.export.trajectory import Trajectory, Turn

if TYPE_CHECKING:
    from concur_batch.engine.protocol import TokenIds

Rewritten = Literal["split", "drop"]
"""What becomes of a trajectory whose history was rewritten: the turns between two rewritings are a record of their own,
or there is none at all."""

# By what is counted for the card, in every format.
WAS_REWRITTEN = "history rewritten"
SEGMENTS = "segments of those"

# A chat server may write a call, or its own prompt, in some more or fewer tokens than our template. Our choice.
_SLACK_TOKENS = 16


def whole(trajectory: Trajectory) -> Sequence[Turn]:
    """Its turns. Raises Unfit where there are none, or some are missing."""
    if not trajectory.turns:
        raise Unfit("no turns")
    check_turns(trajectory)
    return trajectory.turns


def check_turns(trajectory: Trajectory) -> None:
    """Raises Unfit where a turn is not on record: it went with the disk of a node."""
    if [turn.row["turn"] for turn in trajectory.turns] != list(range(trajectory.agent["turns"])):
        raise Unfit("turns are missing")


def history_ids(turns: Iterable[Turn]) -> TokenIds:
    """All ids that the engine saw and sampled, in their order."""
    return np.concatenate([ids for turn in turns for ids in (turn.input_delta_ids, turn.output_ids)])


def unforeseen(turns: Sequence[Turn]) -> list[int]:
    """The turns whose prompt, by the engine's own count, is not the history that the turns before have made.

    Exact ids: the count differs from that of the deltas. Where they are estimates, a chat server has put the prompt
    together: it was rewritten if it is shorter, by more than `_SLACK_TOKENS`, than the server's own count of the turn
    before and what has come since.
    """
    found = []
    tokens = 0  # before the turn
    for number, turn in enumerate(turns):
        told = turn.row["input_tokens"]
        missing = tokens + len(turn.input_delta_ids) - told
        if turn.row["ids_estimated"]:
            differs = number > 0 and missing > _SLACK_TOKENS
            tokens = told + turn.row["output_tokens"]
        else:
            differs = missing != 0
            tokens = told + len(turn.output_ids)
        if differs:
            found.append(number)
    return found


def segments(turns: int, cuts: Iterable[int]) -> list[range]:
    """The numbers of the turns in parts, of which each of `cuts` begins one."""
    return [range(*ends) for ends in pairwise(sorted({0, *cuts, turns}))]
