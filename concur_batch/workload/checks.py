"""Which check judges the result of a task's agents."""

from __future__ import annotations

from collections.abc import Sequence

from concur_batch.agent.spec import AnswerCheck, CommandCheck
from concur_batch.workload.cells import read_match
from concur_batch.workload.schema import Verify, VerifyCommand
from concur_batch.workload.tasks import Task


def check_of(task: Task, verify: Sequence[Verify]) -> CommandCheck | AnswerCheck | None:
    """The first check that applies to the task: whose column is not null there. None: its agents have no reward."""
    for check in verify:
        cell = task.columns.get(check.column)
        if cell is None:
            continue
        if isinstance(check, VerifyCommand):
            return CommandCheck(cell["command"], cell["files"], check.deadline_seconds)
        match = task.columns.get(check.match_column) if check.match_column is not None else None
        return AnswerCheck(str(cell), read_match(match, check.match))
    return None
