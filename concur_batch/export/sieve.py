"""What becomes of the trajectories as they come, task by task and of a task the best first. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from concur_batch.export.duplicates import Sameness, digest
from concur_batch.export.form import Form, Record, Unfit
from concur_batch.export.history import check_turns
from concur_batch.export.trajectory import Trajectory


class Sieve:
    """Of each task at most `best` trajectories, and of the same ones only the first; None for no such limit.

    `forms` are the format by run. A trajectory that has no record takes no place among the best.
    """

    def __init__(self, forms: Mapping[str, Form], best: int | None, sameness: Sameness | None) -> None:
        self._forms = forms
        self._best = best
        self._sameness = sameness
        self._seen: set[bytes] = set()
        self._task: str | None = None
        self._of_task = 0

    def records(self, trajectory: Trajectory) -> Sequence[Record]:
        """The records of a trajectory that is kept. Raises Unfit with the reason for one that is not."""
        agent = trajectory.agent
        if agent["task_id"] != self._task:
            self._task, self._of_task = agent["task_id"], 0
        check_turns(trajectory)
        if self._of_task == self._best:
            raise Unfit(f"not among the best {self._best} of its task")
        key = None if self._sameness is None else digest(trajectory, self._sameness)
        if key in self._seen:
            raise Unfit("duplicate")
        records = self._forms[trajectory.run].records(trajectory)
        if not records:
            raise Unfit("no record")
        if key is not None:
            self._seen.add(key)
        self._of_task += 1
        return records
