"""What a run would do, without doing any of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from concur_batch.agent.prompting import initial_messages
from concur_batch.agent.spec import AgentSpec, AnswerCheck, CommandCheck
from concur_batch.agent.tokenizer import Tokenizer
from concur_batch.workload.checks import check_of
from concur_batch.workload.loading import Loaded
from concur_batch.workload.schema import SandboxTools, SyntheticTools
from concur_batch.workload.settings import settings_of
from concur_batch.workload.tasks import Task
from tools_env.catalogue import CATALOGUE
from tools_env.spec import ToolSpec
from tools_env.synthetic import SyntheticEnvironment


def plan(loaded: Loaded, agents: Sequence[AgentSpec], tasks: Sequence[Task], tokenizer: Tokenizer) -> dict[str, Any]:
    """What would run, as plain data: counts, tools, the first agent's prompt, and every setting with its value.

    `first_prompt` is the text that the engine would see, and `first_prompt_tokens` its length: system prompt, tools,
    first user message and generation prompt.
    """
    workload = loaded.workload
    specs = tool_specs(workload.tools)
    trajectories = [agent.trajectory for agent in agents if agent.trajectory is not None]
    if trajectories:
        ids = trajectories[0].steps[0].new_ids
        text = tokenizer.decode(ids.tolist(), skip_special=False)
    else:
        prompt = tasks[0].prompt
        messages, tools = initial_messages(loaded.system, prompt, specs, workload.agent.format, tokenizer.template)
        ids = tokenizer.encode_prompt(messages, tools)
        text = tokenizer.template.render(messages, tools, generation_prompt=True)
    checks = Counter(_name_of(check_of(task, workload.verify)) for task in tasks)
    return {
        "workload": str(loaded.path),
        "name": workload.name,
        "agents": len(agents),
        "tasks": len({agent.task_id for agent in agents}),
        "samples": max(agent.sample for agent in agents) + 1,
        "replayed_turns": sum(len(trajectory.steps) for trajectory in trajectories),
        "tasks_by_check": dict(sorted(checks.items())),
        "format": workload.agent.format,
        "tools": [spec.name for spec in specs],
        "engine": workload.engine.kind,
        "policy": workload.control.policy,
        "limits": workload.agent.limits.model_dump(mode="json"),
        "first_prompt": text,
        "first_prompt_tokens": len(ids),
        "settings": settings_of(workload),
    }


def tool_specs(tools: SandboxTools | SyntheticTools) -> list[ToolSpec]:
    """What the model is told of its tools."""
    if isinstance(tools, SyntheticTools):
        return SyntheticEnvironment(tools.wait_seconds, tools.observation_words, 0).specs()
    return [CATALOGUE[name] for name in tools.names]


def _name_of(check: CommandCheck | AnswerCheck | None) -> str:
    match check:
        case CommandCheck():
            return "command"
        case AnswerCheck():
            return "answer"
        case None:
            return "none"
