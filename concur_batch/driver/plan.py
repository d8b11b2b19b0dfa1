"""From a workload and its tasks to the agents of a run. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from concur_batch.agent.spec import AgentSpec
from concur_batch.control.member import Traits
from concur_batch.workload.checks import check_of
from concur_batch.workload.schema import Workload
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
            check=check_of(task, workload.verify),
            traits=Traits(task.priority, task.group, task.deadline_seconds),
        )
        for sample in range(workload.tasks.samples)
        for task in tasks
    ]
