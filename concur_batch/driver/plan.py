"""From a workload to the agents of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.spec import AgentSpec
from concur_batch.control.member import Traits
from concur_batch.driver.replay import drawn_agents, recorded_agents, trajectories_digest
from concur_batch.foreign.file import read_agents, tokenizer_digest, tokenizer_of
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run
from concur_batch.workload.checks import check_of
from concur_batch.workload.errors import InputError
from concur_batch.workload.fingerprint import tasks_digest
from concur_batch.workload.loading import Loaded, load_tasks
from concur_batch.workload.schema import Tasks, Verify
from concur_batch.workload.seeds import agent_id, agent_seed
from concur_batch.workload.tasks import Task


@dataclass(frozen=True, slots=True)
class Batch:
    """The agents of a run, in the order in which they begin. `digest` is of all that they are given; `tasks` are empty
    where they are replayed, and `note` says what of a recorded run is not."""

    agents: list[AgentSpec]
    tasks: list[Task]
    digest: str
    note: str | None = None


def make_batch(loaded: Loaded, tokenizer: Tokenizer) -> Batch:
    """Read the tasks, or the trajectories to replay. Raises InputError with everything that is wrong, or TraceError."""
    workload = loaded.workload
    if workload.tasks is not None:
        tasks = load_tasks(loaded)
        agents = make_agents(workload.tasks, workload.verify, tasks)
        return Batch(agents, tasks, tasks_digest(tasks, workload.verify))
    section = workload.replay
    assert section is not None, "a workload has tasks or a replay"
    note = None
    if section.synthetic is not None:
        agents = drawn_agents(section.synthetic, tokenizer)
    elif section.file is not None:
        agents = _foreign_agents(loaded, section.file)
    else:
        assert section.run is not None, "a replay has one source"
        agents, left_out = recorded_agents(Run(section.run))
        if left_out:
            note = f"{left_out} agents of {section.run.name} are not replayed: they did not come to an end of their own"
        if not agents:
            reason = f"no agent of {section.run.name} came to an end of its own"
            raise InputError([loaded.source.problem(("replay", "run"), reason, "give a run whose agents have ended")])
    agents = agents[: section.limit]
    return Batch(agents, [], trajectories_digest(agents), note)


def _foreign_agents(loaded: Loaded, file: Path) -> list[AgentSpec]:
    """Those of a file of `concur replay-from`. Raises InputError."""
    try:
        if tokenizer_of(file) != tokenizer_digest(loaded.workload.model.tokenizer):
            reason = f"the token ids of {file.name} are not of this tokenizer"
            mend = "make it anew: `concur replay-from … --model` this directory"
            raise InputError([loaded.source.problem(("model", "tokenizer"), reason, mend)])
        return read_agents(file)
    except TraceError as error:
        mend = "give a file that `concur replay-from` has made"
        raise InputError([loaded.source.problem(("replay", "file"), str(error), mend)]) from None


def make_agents(section: Tasks, verify: Sequence[Verify], tasks: Sequence[Task]) -> list[AgentSpec]:
    """One agent per task and sample, all first samples before all second ones, so that early results are broad."""
    return [
        AgentSpec(
            agent_id=agent_id(task.id, sample),
            task_id=task.id,
            sample=sample,
            seed=agent_seed(section.seed, task.id, sample),
            prompt=task.prompt,
            files=task.files,
            check=check_of(task, verify),
            traits=Traits(task.priority, task.group, task.deadline_seconds),
        )
        for sample in range(section.samples)
        for task in tasks
    ]
