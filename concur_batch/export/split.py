"""Training, validation and test data apart, by task. Pure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from hashlib import blake2b

DATA = "data"  # the directory of all files of splits, in that of the data set
# As `datasets` takes names of splits.
_NAME = re.compile(r"\w+(\.\w+)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Split:
    """The shares of the splits, which add up to 1, in the order given.

    Where a task goes depends on the seed and the task's id alone, so all samples of a task go to one split, in every
    run, and whatever other tasks there are. With few tasks the shares are met only roughly.
    """

    shares: tuple[tuple[str, float], ...] = (("train", 1.0),)
    seed: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.shares)

    def of(self, task_id: str) -> str:
        """The split of a task."""
        digest = blake2b(f"{self.seed}\n{task_id}".encode(), digest_size=8).digest()
        place, end = int.from_bytes(digest, "big") / 2**64, 0.0
        for name, share in self.shares:
            end += share
            if place < end:
                return name
        return self.shares[-1][0]  # the shares' sum is rounded


def read_shares(text: str) -> tuple[tuple[str, float], ...]:
    """`train=0.9,val=0.1`. Raises ValueError with the mend."""
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = (side.strip() for side in part.partition("="))
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a split; give letters, digits and _, as train=0.9,val=0.1")
        if name in shares:
            raise ValueError(f"{name} is there twice; give each split one share")
        try:
            shares[name] = float(share)
        except ValueError:
            raise ValueError(f"{name} has no share; give shares that add up to 1, as train=0.9,val=0.1") from None
        if not 0 < shares[name] <= 1:
            raise ValueError(f"the share of {name} is {share}; give shares above 0 that add up to 1")
    if not math.isclose(total := math.fsum(shares.values()), 1, abs_tol=1e-6):
        raise ValueError(f"the shares add up to {total:g}; make it 1")
    return tuple(shares.items())
