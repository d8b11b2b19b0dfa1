"""What is on record of a run's agents, and how each of them goes on from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from concur_batch.agent.spec import AgentSpec
from concur_batch.agent.tally import SUMMED
from concur_batch.trace.attempts import Key, keys_of
from concur_batch.trace.intents import unrecorded
from concur_batch.trace.reading import Run

_INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True)
class Begun:
    """The turns of an attempt that are on record: how many, the number of the last, and the tools' mark after that."""

    turns: int
    last: int
    tools_mark: str | None


@dataclass(frozen=True, slots=True)
class Past:
    """By agent: the class of its failure, or none, for those that have ended (`final`), and of each attempt that has
    ended without that (`tried`); by attempt the turns on record (`begun`)."""

    final: Mapping[str, tuple[int, str | None]]
    tried: Mapping[str, Mapping[int, str | None]]
    begun: Mapping[Key, Begun]

    def has_ended(self, agent: str, attempt: int) -> bool:
        """Whether the end of that attempt is on record."""
        final = self.final.get(agent)
        return attempt in self.tried.get(agent, ()) or (final is not None and final[0] == attempt)

    def failed(self, classes: Collection[str]) -> list[Key]:
        """The attempts with which agents ended in a failure of these classes."""
        return [(agent, attempt) for agent, (attempt, failure) in self.final.items() if failure in classes]


def read_past(run: Run) -> Past:
    """Read it from the tables of a run. Raises TraceError."""
    final: dict[str, tuple[int, str | None]] = {}
    tried: dict[str, dict[int, str | None]] = defaultdict(dict)
    for row in run.table("agents", ["agent_id", "attempt", "final", "failure_class"]).to_pylist():
        if row["final"]:
            final[row["agent_id"]] = (row["attempt"], row["failure_class"])
        else:
            tried[row["agent_id"]][row["attempt"]] = row["failure_class"]
    turns = run.table("turns", ["agent_id", "attempt", "turn", "tools_mark"]).sort_by("turn")
    whole = pc.ScalarAggregateOptions(skip_nulls=False)
    attempts = turns.group_by(["agent_id", "attempt"], use_threads=False).aggregate(
        [("turn", "count"), ("turn", "last"), ("tools_mark", "last", whole)]
    )
    begun = {
        (row["agent_id"], row["attempt"]): Begun(row["turn_count"], row["turn_last"], row["tools_mark_last"])
        for row in attempts.to_pylist()
    }
    return Past(final, tried, begun)


def going_on(agents: Sequence[AgentSpec], past: Past, attempts: int) -> list[AgentSpec]:
    """The agents that have not ended, as they go on where each may have so many `attempts`.

    One whose attempt is under way goes on behind its last turn on record. It begins the next attempt instead where a
    turn before is missing, as after the loss of a disk, or where nothing tells how its tools were.
    """
    highest: dict[str, int] = {}
    for agent, attempt in past.begun:
        highest[agent] = max(attempt, highest.get(agent, 0))
    return [
        _goes_on(agent, past.tried.get(agent.agent_id, {}), highest.get(agent.agent_id, -1), past.begun, attempts)
        for agent in agents
        if agent.agent_id not in past.final
    ]


def _goes_on(
    agent: AgentSpec, tried: Mapping[int, str | None], highest: int, begun: Mapping[Key, Begun], attempts: int
) -> AgentSpec:
    used = 0  # attempts since the last one that failed for another reason, and was taken back for that
    for number in sorted(tried):
        used = used + 1 if tried[number] == _INFRASTRUCTURE else 0
    last_tried = max(tried, default=-1)
    found = replace(agent, attempt=max(highest, last_tried) + 1, attempts_before=used % attempts)
    if highest > last_tried:
        under_way = begun[agent.agent_id, highest]
        known = under_way.tools_mark is not None or agent.trajectory is not None
        if known and under_way.turns == under_way.last + 1:
            return replace(found, attempt=highest, goes_on=True)
    return found


def life_of(manifest: Mapping[str, Any]) -> int:
    """Which life of its run goes on, or has ended: 0 is the first, each resume begins another."""
    return len(manifest.get("resumed", ()))


def calls_cut_off(run: Run, past: Past, intents: Collection[Mapping[str, Any]]) -> int:
    """How many calls had been meant to run and are on no record, of the attempts that have not ended: whether they ran,
    and how far, nobody knows. `intents` were read before. Raises TraceError."""
    agents = pa.array(sorted({row["agent_id"] for row in intents}), pa.string())
    turns = run.table("turns", ["agent_id", "attempt", "turn"], pc.field("agent_id").isin(agents))
    recorded = set(zip(*turns.to_pydict().values(), strict=True))
    return sum(
        len(row["calls"])
        for row in unrecorded(intents, recorded)
        if not past.has_ended(row["agent_id"], row["attempt"])
    )


def account_of(run: Run, agents: Iterable[AgentSpec], left: Iterable[AgentSpec]) -> dict[str, Any]:
    """What is on record of these agents, as a host tells it of its own (see `AgentHost.status`): without the turns of
    those that are `left` and go on, since their host tells of them."""
    told = pa.array([agent.agent_id for agent in agents], pa.string())
    gone = [(agent.agent_id, agent.attempt) for agent in left if agent.goes_on]

    def rows(table: str, *columns: str) -> pa.Table:
        found = run.table(table, ["agent_id", "attempt", *columns], pc.field("agent_id").isin(told))
        return found.filter(pc.invert(keys_of(found, gone)))

    turns = rows("turns", "action", *SUMMED)
    sums: dict[str, float] = {name: pc.sum(turns[name]).as_py() or 0 for name in SUMMED}
    sums["turns"] = turns.num_rows
    sums["tool_calls"] = rows("tools").num_rows
    sums["malformed_turns"] = turns.filter(pc.field("action") == "malformed").num_rows
    sums["pauses"] = turns.filter(pc.field("paused_seconds") > 0).num_rows
    ended = [row for row in rows("agents", "final", "status", "failure_class", "reward").to_pylist() if row["final"]]
    rewards = [row["reward"] for row in ended if row["reward"] is not None]
    return {
        "sums": sums,
        "endings": dict(
            Counter(str(row["failure_class"] if row["status"] == "failed" else row["status"]) for row in ended)
        ),
        "rewards": (len(rewards), sum(rewards)),
        "loop_lag_p99_seconds": 0.0,
        "recorder_error": None,
        "fatal": None,
    }


def seconds_of(run: Run) -> float:
    """How long a run has been running, by what is on record: a killed one could not say."""
    moments = [float(run.manifest.get("seconds") or 0.0)]
    for table, column in (("agents", "ended_seconds"), ("turns", "ended_seconds"), ("control", "seconds")):
        moments.append(pc.max(run.table(table, [column])[column]).as_py() or 0.0)
    return max(moments)
