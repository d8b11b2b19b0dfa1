"""What a run would do, without doing any of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from concur_batch.agent.prompting import initial_messages
from concur_batch.agent.spec import AnswerCheck, CommandCheck
from concur_batch.agent.tokenizer import Tokenizer
from concur_batch.agent.transcript import Transcript
from concur_batch.workload.checks import check_of
from concur_batch.workload.loading import Loaded
from concur_batch.workload.schema import SandboxTools, SyntheticTools
from concur_batch.workload.settings import settings_of
from concur_batch.workload.tasks import Task
from tools_env.catalogue import CATALOGUE
from tools_env.spec import ToolSpec
from tools_env.synthetic import SyntheticEnvironment


def plan(loaded: Loaded, tasks: Sequence[Task], tokenizer: Tokenizer | None = None) -> dict[str, Any]:
    """What would run, as plain data: counts, tools, the first agent's prompt, and every setting with its value.

    With a tokenizer, `first_prompt` is the text that the engine would see, and `first_prompt_tokens` its length: system
    prompt, tools, first user message and generation prompt. Without, it is the user message, and the length is None.
    """
    workload = loaded.workload
    specs = tool_specs(workload.tools)
    text, tokens = tasks[0].prompt, None
    if tokenizer is not None:
        messages, tools = initial_messages(loaded.system, text, specs, workload.agent.format, tokenizer.template)
        transcript = Transcript(tokenizer)
        transcript.start(messages, tools)
        text = tokenizer.template.render(messages, tools, generation_prompt=True)
        tokens = len(transcript.ids)
    checks = Counter(_name_of(check_of(task, workload.verify)) for task in tasks)
    return {
        "workload": str(loaded.path),
        "name": workload.name,
        "agents": len(tasks) * workload.tasks.samples,
        "tasks": len(tasks),
        "samples": workload.tasks.samples,
        "tasks_by_check": dict(sorted(checks.items())),
        "format": workload.agent.format,
        "tools": [spec.name for spec in specs],
        "engine": workload.engine.kind,
        "policy": workload.control.policy,
        "limits": workload.agent.limits.model_dump(mode="json"),
        "first_prompt": text,
        "first_prompt_tokens": tokens,
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
