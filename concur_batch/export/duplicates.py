"""When two trajectories are the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Literal, get_args

from concur_batch.export.trajectory import Trajectory

Sameness = Literal["exact", "text"]
SAMENESSES: tuple[Sameness, ...] = get_args(Sameness)


def digest(trajectory: Trajectory, sameness: Sameness) -> bytes:
    """Equal for trajectories that are the same.

    exact: all token ids are equal, turn by turn. text: the first prompt is, and so is what the model wrote, turn by
    turn, but for upper and lower case and white space; observations do not count. (Without the prompt, any two tasks
    with the answer "42" would be the same.)
    """
    found = blake2b(digest_size=16)
    for part in _ids(trajectory) if sameness == "exact" else _texts(trajectory):
        found.update(len(part).to_bytes(8, "little"))  # where one ends counts
        found.update(part)
    return found.digest()


def _ids(trajectory: Trajectory) -> Iterator[bytes]:
    for turn in trajectory.turns:
        yield turn.input_delta_ids.tobytes()
        yield turn.output_ids.tobytes()


def _texts(trajectory: Trajectory) -> Iterator[bytes]:
    yield trajectory.turns[0].input_delta_ids.tobytes()
    for turn in trajectory.turns:
        yield " ".join(turn.row["output_text"].lower().split()).encode()
