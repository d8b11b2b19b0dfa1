"""What a run has left, without what may differ from run to run, and how that of a disturbed run differs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class TurnKey(NamedTuple):
    """Which turn."""

    agent: str
    attempt: int
    turn: int


Ids = tuple[tuple[int, ...], ...]
"""Of one turn: those that came in, and those that were generated."""
Files = Mapping[str, tuple[int, bytes | str | None]]
"""By path: the mode, and the content or a link's target."""


@dataclass(frozen=True, slots=True)
class Record:
    """`ends`, `ids`, `steps` and `workspaces` are by agent, of the attempt that counts: its end, the token ids of its
    turns, all else of its turns and calls, and its files. `turns` are the ids of all turns, of failed attempts too.
    `doubled` counts rows beyond the first of the same agent, attempt, turn and call, and agents' further final rows.
    """

    ends: Mapping[str, tuple[Any, ...]]
    ids: Mapping[str, tuple[Ids, ...]]
    steps: Mapping[str, tuple[tuple[Any, ...], ...]]
    workspaces: Mapping[str, Files]
    turns: Mapping[TurnKey, Ids]
    doubled: int


@dataclass(frozen=True, slots=True)
class Differences:
    """`lost` counts turns that were on record once and are not in the end, or with other ids; `doubled` rows that are
    there twice; `ids`, `results` and `workspaces` agents whose token ids, ends or steps, and files are not the same."""

    lost: int = 0
    doubled: int = 0
    ids: int = 0
    results: int = 0
    workspaces: int = 0

    @property
    def none(self) -> bool:
        """Whether it is the same work."""
        return self == Differences()


def compare(expected: Record, found: Record, committed: Mapping[TurnKey, Ids]) -> Differences:
    """`committed` are the turns that were on record when commands had ended before their time."""
    return Differences(
        lost=sum(found.turns.get(key) != ids for key, ids in committed.items()),
        doubled=found.doubled,
        ids=len(_differing(expected.ids, found.ids)),
        results=len(_differing(expected.ends, found.ends) | _differing(expected.steps, found.steps)),
        workspaces=len(_differing(expected.workspaces, found.workspaces)),
    )


def _differing(expected: Mapping[str, Any], found: Mapping[str, Any]) -> set[str]:
    """The agents that have not the same in both, or are in one alone."""
    return {agent for agent in expected.keys() | found.keys() if expected.get(agent) != found.get(agent)}
