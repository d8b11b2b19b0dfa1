"""Trajectories to replay: recorded ones from a run's tables, or drawn ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np
import orjson

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.rows import recorded_call
from concur_batch.agent.spec import AgentSpec, Ending
from concur_batch.agent.trajectory import Exchange, Step, Trajectory
from concur_batch.engine.protocol import TokenIds
from concur_batch.trace.attempts import Key, Row, rows_of_attempts
from concur_batch.trace.reading import Run
from concur_batch.workload.drawn import draw, drawn_task
from concur_batch.workload.schema import Synthetic
from concur_batch.workload.seeds import agent_id, agent_seed
from tools_env.spec import ToolResult

_TURN_COLUMNS = ("agent_id", "attempt", "turn", "input_delta_ids", "output_tokens")
_AGENT_COLUMNS = ("agent_id", "task_id", "sample", "attempt", "seed", "status", "end_reason", "failure_class", "error",
                  "answer", "turns", "started_seconds")  # fmt: skip


def recorded_agents(run: Run) -> tuple[list[AgentSpec], int]:
    """The agents of a run whose end was their own doing, in the order in which they began, and how many were not:
    who failed for infrastructure, was cancelled or has not ended did not do all of its work. Raises TraceError."""
    rows = run.agents_final().select(list(_AGENT_COLUMNS)).to_pylist()
    ended = [row for row in rows if row["turns"] and row["failure_class"] not in ("infrastructure", "cancelled")]
    ended.sort(key=lambda row: (row["started_seconds"], row["agent_id"]))
    attempts = {(row["agent_id"], row["attempt"]) for row in ended}
    turns = rows_of_attempts(run, "turns", _TURN_COLUMNS, attempts)
    tools = rows_of_attempts(run, "tools", None, attempts)
    agents = [_recorded(row, turns, tools) for row in ended]
    return agents, int(run.manifest["agents"]) - len(agents)


def drawn_agents(section: Synthetic, tokenizer: Tokenizer) -> list[AgentSpec]:
    """Agents of seeded trajectories. Their texts are random tokens: beyond what is shared, no two begin alike."""
    ordinary = tokenizer.ordinary_ids()
    shared = np.random.default_rng(section.seed).choice(ordinary, section.shared_tokens)
    return [_drawn(section, number, shared, ordinary) for number in range(section.agents)]


def trajectories_digest(agents: Sequence[AgentSpec]) -> str:
    """A digest of all that is replayed; the order of the agents does not matter."""
    digest = blake2b(digest_size=16)
    for agent in sorted(agents, key=lambda agent: agent.agent_id):
        assert agent.trajectory is not None, "it is replayed"
        digest.update(orjson.dumps([agent.agent_id, agent.seed]))
        for step in agent.trajectory.steps:
            digest.update(step.new_ids.tobytes())
            digest.update(orjson.dumps([step.output_tokens, [each.result.seconds for each in step.exchanges]]))
    return digest.hexdigest()


def _recorded(agent: Row, turns: Mapping[Key, list[Row]], tools: Mapping[Key, list[Row]]) -> AgentSpec:
    name, key = agent["agent_id"], (agent["agent_id"], agent["attempt"])
    exchanges: dict[int, list[Exchange]] = defaultdict(list)
    for row in tools.get(key, ()):
        exchanges[row["turn"]].append(_exchange(row))
    steps = tuple(
        Step(np.asarray(row["input_delta_ids"], np.int32), row["output_tokens"], tuple(exchanges[row["turn"]]))
        for row in turns[key]
    )
    ending = Ending(agent["status"], agent["end_reason"], agent["failure_class"], agent["error"], agent["answer"])
    return AgentSpec(
        agent_id=name,
        task_id=agent["task_id"],
        sample=agent["sample"],
        seed=agent["seed"],
        prompt="",
        trajectory=Trajectory(steps, ending),
    )


def _exchange(row: Row) -> Exchange:
    """The replay waits for what the tool took, not for a place to run in."""
    call, result = recorded_call(row)
    return Exchange(call.name, call.arguments, replace(result, queue_seconds=0.0))


def _drawn(section: Synthetic, number: int, shared: TokenIds, ordinary: TokenIds) -> AgentSpec:
    task = drawn_task(number)
    drawn = draw(section, number)
    ids = np.random.default_rng(drawn.ids_seed)
    steps: list[Step] = []
    for turn in drawn.turns:
        new_ids = ids.choice(ordinary, turn.new_tokens)
        if not steps:
            new_ids = np.concatenate((shared, new_ids))
        calls = () if turn.tool_seconds is None else (Exchange("work", {}, ToolResult("ok", "", turn.tool_seconds)),)
        steps.append(Step(new_ids.astype(np.int32), turn.output_tokens, calls))
    return AgentSpec(
        agent_id=agent_id(task, 0),
        task_id=task,
        sample=0,
        seed=agent_seed(section.seed, task, 0),
        prompt="",
        trajectory=Trajectory(tuple(steps), Ending("finished", "answer")),
    )
