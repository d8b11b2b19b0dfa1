"""The plans of a batch: from distributions, or from trajectories that are decided already. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np

from concur_batch.agent.spec import AgentSpec
from concur_batch.agent.trajectory import Step
from concur_batch.bench.plan import Plan, Turn
from concur_batch.engine.protocol import TokenIds
from concur_batch.workload.drawn import draw
from concur_batch.workload.schema import Trajectories


@dataclass(frozen=True, slots=True)
class Load:
    """What a batch's agents do. `shared_tokens` begin the prompt of every one, and are not in its plan."""

    plans: tuple[Plan, ...]
    shared_tokens: int

    def with_tool_times(self, factor: float) -> Load:
        """The same with every tool so much slower."""
        return replace(self, plans=tuple(_with_tool_times(plan, factor) for plan in self.plans))


def drawn_load(section: Trajectories, agents: Sequence[str], tasks: Sequence[str] | None = None) -> Load:
    """The agents of these names, with the lengths and tool times that a replay of the section would draw for them.
    `tasks`, of as many names, are what they do: agents of the same task have the first one's prompt in common."""
    prompts: dict[str, int] = {}
    plans = []
    for number, name in enumerate(agents):
        drawn = draw(section, number).turns
        turns = [Turn(turn.new_tokens, turn.output_tokens, turn.tool_seconds or 0.0) for turn in drawn]
        task = tasks[number] if tasks is not None else None
        if task is not None:
            turns[0] = replace(turns[0], new_tokens=prompts.setdefault(task, turns[0].new_tokens))
        plans.append(Plan(name, tuple(turns), task))
    return Load(tuple(plans), section.shared_tokens)


def replayed_load(agents: Sequence[AgentSpec]) -> Load:
    """The lengths and tool times of these agents' trajectories; shared is what all their prompts begin with, and those
    whose prompts are the same, as the samples of a task, have them in common."""
    steps_by_agent = {agent.agent_id: _steps_of(agent) for agent in agents}
    shared_tokens = _common_tokens([steps[0].new_ids for steps in steps_by_agent.values()])
    plans = []
    for name, steps in steps_by_agent.items():
        turns = [
            Turn(len(step.new_ids), step.output_tokens, sum(exchange.result.seconds for exchange in step.exchanges))
            for step in steps
        ]
        turns[0] = replace(turns[0], new_tokens=turns[0].new_tokens - shared_tokens)
        plans.append(Plan(name, tuple(turns), blake2b(steps[0].new_ids.tobytes(), digest_size=16).hexdigest()))
    return Load(tuple(plans), shared_tokens)


def _with_tool_times(plan: Plan, factor: float) -> Plan:
    turns = tuple(replace(turn, tool_seconds=turn.tool_seconds * factor) for turn in plan.turns)
    return replace(plan, turns=turns)


def _steps_of(agent: AgentSpec) -> tuple[Step, ...]:
    assert agent.trajectory is not None, "it is replayed"
    return agent.trajectory.steps


def _common_tokens(prompts: Sequence[TokenIds]) -> int:
    """How many tokens all of them begin with."""
    first = prompts[0]
    common = len(first)
    for prompt in prompts:
        common = min(common, len(prompt))
        differ = np.flatnonzero(first[:common] != prompt[:common])
        common = int(differ[0]) if len(differ) else common
    return common
