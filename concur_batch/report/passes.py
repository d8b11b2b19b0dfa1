"""pass@k: how often at least one of k samples of a task is right. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import comb
from typing import Any

Row = Mapping[str, Any]


def pass_at(k: int, samples: int, right: int) -> float:
    """The share of all choices of k among a task's samples that hold a right one: 1 - C(n-c, k) / C(n, k).

    The unbiased estimator of Chen et al., Evaluating Large Language Models Trained on Code (arXiv 2107.03374), section
    2.1. Needs k samples at least.
    """
    return 1 - comb(samples - right, k) / comb(samples, k)


def passes(final: Iterable[Row]) -> dict[str, Any] | None:
    """From final rows of the table `agents`; None where no task has several samples, or rewards are not all 0 or 1.

    A sample is an agent with a reward, or one that the model itself has failed, which is not right; others say nothing
    of the model, and are `left_out`. `at` has, for each k that is a power of two or the most samples of a task, the
    mean over the tasks that have so many; `tasks` counts those.
    """
    rows = list(final)
    judged = {row["task_id"] for row in rows if row["reward"] is not None}
    samples: dict[str, list[bool]] = {}
    for row in rows:
        if row["task_id"] in judged and (row["reward"] is not None or row["failure_class"] == "model"):
            samples.setdefault(row["task_id"], []).append(row["reward"] == 1)
    most = max(map(len, samples.values()), default=0)
    if most < 2 or not {row["reward"] for row in rows} <= {None, 0.0, 1.0}:
        return None
    at, tasks = {}, {}
    for k in (*(2**power for power in range(most.bit_length()) if 2**power < most), most):
        found = [pass_at(k, len(of_task), sum(of_task)) for of_task in samples.values() if len(of_task) >= k]
        at[k], tasks[k] = sum(found) / len(found), len(found)
    return {"at": at, "tasks": tasks, "left_out": len(rows) - sum(map(len, samples.values()))}
