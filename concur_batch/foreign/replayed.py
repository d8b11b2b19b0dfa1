"""Foreign trajectories as agents to replay. Pure."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import orjson

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.spec import AgentSpec
from concur_batch.agent.trajectory import Exchange, Step
from concur_batch.agent.trajectory import Trajectory as Steps
from concur_batch.foreign.tokens import tokens_of
from concur_batch.foreign.trajectory import Call, Format, Timing, Trajectory
from concur_batch.workload.drawn import log_uniform
from concur_batch.workload.seeds import agent_id, agent_seed
from tools_env.spec import Status, ToolResult


@dataclass(frozen=True, slots=True)
class Replayed:
    """An agent to replay, and what is known of it: the `source` that it was read from, whether its ids are those of the
    file, and for each call of each turn how its seconds are known."""

    agent: AgentSpec
    format: Format
    source: str
    recorded_ids: bool
    timings: tuple[tuple[Timing, ...], ...]


class Reader:
    """Makes agents of trajectories, for one model. Calls whose seconds nobody tells take some that are drawn from
    `tool_seconds`, [least, most], log-uniformly: by the seed and the agent's name alone.

    Trajectories of the same name are samples of one task, in the order in which they come.
    """

    def __init__(self, tokenizer: Tokenizer, tool_seconds: tuple[float, float], seed: int) -> None:
        self._tokenizer = tokenizer
        self._tool_seconds = tool_seconds
        self._seed = seed
        self._samples: Counter[str] = Counter()

    def agent(self, trajectory: Trajectory, source: str) -> Replayed:
        """Raises Unfit."""
        tokens = tokens_of(trajectory, self._tokenizer)
        task, sample = trajectory.name, self._samples[trajectory.name]
        self._samples[task] += 1
        name = agent_id(task, sample)
        rng = random.Random(f"{self._seed}/{name}")
        steps, timings = [], []
        for turn, (new_ids, output_tokens) in zip(trajectory.turns, tokens.turns, strict=True):
            seconds = [
                log_uniform(rng, self._tool_seconds) if call.seconds is None else call.seconds for call in turn.calls
            ]
            steps.append(Step(new_ids, output_tokens, tuple(map(_exchange, turn.calls, seconds))))
            told = (trajectory.timing if call.seconds is not None else "drawn" for call in turn.calls)
            timings.append(tuple(told))
        agent = AgentSpec(
            agent_id=name,
            task_id=task,
            sample=sample,
            seed=agent_seed(self._seed, task, sample),
            prompt="",
            trajectory=Steps(tuple(steps), trajectory.ending),
        )
        return Replayed(agent, trajectory.format, source, tokens.recorded, tuple(timings))


def _exchange(call: Call, seconds: float) -> Exchange:
    status: Status = "error" if call.exit_code else "ok"
    size = len(call.output.encode(errors="replace"))
    result = ToolResult(status, call.output, seconds, exit_code=call.exit_code, output_bytes=size)
    return Exchange(call.name, _arguments(call.arguments), result)


def _arguments(text: str) -> dict[str, object]:
    """The object that the model wrote, or what it wrote in place of one."""
    try:
        found = orjson.loads(text)
        orjson.dumps(found)  # which nests less deeply, and rows have to hold it
    except (ValueError, TypeError):
        found = None
    return found if isinstance(found, dict) else {"arguments": text}
