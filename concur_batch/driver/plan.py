"""From a workload and its tasks to the agents of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from concur_batch.agent.spec import AgentSpec, AnswerCheck, CommandCheck
from concur_batch.workload.schema import VerifyAnswer, VerifyCommand, Workload
from concur_batch.workload.seeds import agent_id, agent_seed
from concur_batch.workload.tasks import Task


def make_agents(workload: Workload, tasks: Sequence[Task]) -> list[AgentSpec]:
    """One agent per task and sample, all first samples before all second ones, so that early results are broad."""
    return [
        AgentSpec(
            agent_id=agent_id(task.id, sample),
            task_id=task.id,
            sample=sample,
            seed=agent_seed(workload.tasks.seed, task.id, sample),
            prompt=task.prompt,
            files=task.files,
            check=_check(workload.verify, task.columns),
        )
        for sample in range(workload.tasks.samples)
        for task in tasks
    ]


def _check(
    checks: Sequence[VerifyCommand | VerifyAnswer], columns: Mapping[str, Any]
) -> CommandCheck | AnswerCheck | None:
    """The first of the workload's checks that applies to the task."""
    for check in checks:
        cell = columns.get(check.column)
        if cell is None:
            continue
        match check:
            case VerifyCommand():
                if cell["command"]:
                    return CommandCheck(cell["command"], cell.get("files") or {}, check.deadline_seconds)
            case VerifyAnswer():
                match_name = check.match
                if check.match_column is not None:
                    match_name = columns.get(check.match_column) or check.match
                return AnswerCheck(str(cell), match_name)
    return None
