"""What a diagnosis is made of and what it yields. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

Row = Mapping[str, Any]

# A trajectory of fewer periods shows nothing.
LEAST_PERIODS = 5
# Above this share of computed prompt tokens computed again, a cache thrashes: a healthy one recomputes a few per cent.
THRASHING_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis that holds: what was seen, why it likely is so, and the setting to change.

    `pool` is the KV pool that it holds of, None where the run has only one, or where it is of the whole run.
    """

    name: str
    evidence: str
    cause: str
    change: str
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """What a pool's diagnoses are made from: its control rows in order of time, the workload's control block, and the
    agents that ended, per pool."""

    rows: Sequence[Row]
    settings: Row
    batch: int


Check = Callable[[Case], Finding | None]


def waiting(row: Row) -> int:
    """Agents that want to generate and may not."""
    count: int = row["pending"] + row["paused"] + row["queued"]
    return count


def recomputed_share(rows: Sequence[Row]) -> float:
    """Of the prompt tokens that the engine computed, those computed again; 0.0 where it computed or tells none."""
    computed = sum(row["computed_tokens"] or 0 for row in rows)
    return sum(row["recomputed_tokens"] for row in rows) / computed if computed else 0.0


def streaks(rows: Sequence[Row], holds: Callable[[Row], bool]) -> Iterator[list[Row]]:
    """The stretches of consecutive rows for which something holds."""
    for held, group in groupby(rows, holds):
        if held:
            yield list(group)


def lasted_seconds(streak: Sequence[Row], settings: Row) -> float:
    """The time that a streak spans; a row stands for the period that it ends."""
    seconds: float = streak[-1]["seconds"] - streak[0]["seconds"] + settings["period_seconds"]
    return seconds
