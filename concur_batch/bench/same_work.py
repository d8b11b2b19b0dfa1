"""Whether two runs did the same work: equal counts and the same final status, agent by agent. Pure.

A speed-up counts only between runs for which this holds; otherwise the faster one may only have done less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = Mapping[str, Any]

# The counts that the same work has in common. `input_tokens` are those of whole prompts, whatever was cached of them:
# hits, recomputation, pauses and seconds are what a policy may change.
COUNTS = ("turns", "input_tokens", "output_tokens", "tool_calls")
FIELDS = (*COUNTS, "status")


class Agent(NamedTuple):
    """Who is compared with whom: the same sample of the same task. Ordered by task, then sample."""

    task_id: str
    sample: int

    def __str__(self) -> str:
        return f"{self.task_id}/{self.sample}"


@dataclass(frozen=True, slots=True)
class Change:
    """One field of one agent that is not the same in both runs; `field` is one of FIELDS."""

    agent: Agent
    field: str
    first: int | str
    second: int | str


@dataclass(frozen=True, slots=True)
class WorkDifference:
    """What two runs did differently.

    `only_first` and `only_second` are the agents that ended in one run alone, in order. `changes` are the fields that
    differ among the agents of both, in order of agents and then of FIELDS. The totals are over all agents of a run:
    `agents`, their number, and the sum of each of COUNTS.
    """

    only_first: tuple[Agent, ...]
    only_second: tuple[Agent, ...]
    changes: tuple[Change, ...]
    first_totals: Mapping[str, int]
    second_totals: Mapping[str, int]

    @property
    def same(self) -> bool:
        """Whether both runs have the same agents and no field of any differs. Two runs without agents are the same."""
        return not (self.only_first or self.only_second or self.changes)

    def lines(self, limit: int = 3) -> list[str]:
        """One line for each way in which the work differs, with its count and its first `limit` agents; none if same.

        The totals on a line are those of all agents of each run.
        """
        lines = [
            f"{_agents(len(missing))} only in the {run} run: {_some(missing, limit)}"
            for run, missing in (("first", self.only_first), ("second", self.only_second))
            if missing
        ]
        for field in FIELDS:
            changes = [change for change in self.changes if change.field == field]
            if not changes:
                continue
            totals = ""
            if field in COUNTS:
                totals = f" (totals {_figure(self.first_totals[field])} and {_figure(self.second_totals[field])})"
            examples = [f"{change.agent} {_figure(change.first)} and {_figure(change.second)}" for change in changes]
            lines.append(f"{_agents(len(changes))} with other {field}{totals}: {_some(examples, limit)}")
        return lines


def work_of(rows: Iterable[Row]) -> tuple[Row, ...]:
    """What `same_work` reads of the rows of an `agents` table, for those who keep no more of them."""
    return tuple({name: row[name] for name in ("task_id", "sample", "final", *FIELDS)} for row in rows)


def same_work(first: Iterable[Row], second: Iterable[Row]) -> WorkDifference:
    """Compare two runs by the rows of their `agents` tables, in any order; rows that are not final do not count.

    Raises ValueError if a run has two final rows for one (task, sample), and KeyError if a row lacks a column.
    """
    ours, theirs = _by_agent(first, "first"), _by_agent(second, "second")
    return WorkDifference(
        only_first=tuple(sorted(ours.keys() - theirs.keys())),
        only_second=tuple(sorted(theirs.keys() - ours.keys())),
        changes=tuple(
            Change(agent, field, ours[agent][field], theirs[agent][field])
            for agent in sorted(ours.keys() & theirs.keys())
            for field in FIELDS
            if ours[agent][field] != theirs[agent][field]
        ),
        first_totals=_totals(ours.values()),
        second_totals=_totals(theirs.values()),
    )


def _by_agent(rows: Iterable[Row], run: str) -> dict[Agent, Row]:
    found: dict[Agent, Row] = {}
    for row in rows:
        if not row["final"]:
            continue
        agent = Agent(row["task_id"], row["sample"])
        if agent in found:
            raise ValueError(f"the {run} run has two final rows of agent {agent}")
        found[agent] = row
    return found


def _totals(rows: Iterable[Row]) -> dict[str, int]:
    totals = dict.fromkeys(("agents", *COUNTS), 0)
    for row in rows:
        totals["agents"] += 1
        for name in COUNTS:
            totals[name] += row[name]
    return totals


def _agents(count: int) -> str:
    return "1 agent" if count == 1 else f"{count:,} agents"


def _figure(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _some(items: Sequence[object], limit: int) -> str:
    """The first few, and how many more there are."""
    shown = [str(item) for item in items[:limit]]
    return ", ".join([*shown, f"{len(items) - limit:,} more"] if len(items) > limit else shown)
