"""What a run's control table says about its settings: the diagnoses that hold, pool by pool. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from concur_batch.control.diagnoses_engine import ENGINE
from concur_batch.control.diagnoses_law import LAW
from concur_batch.control.diagnoses_places import PLACES, starves
from concur_batch.control.diagnoses_tokens import TOKENS, churns
from concur_batch.control.finding import LEAST_PERIODS, Case, Finding, Row


def audit(control: Sequence[Row], agents: Sequence[Row], settings: Row) -> list[Finding]:
    """The diagnoses that hold for a run.

    `control` are the rows of its control table in order of time, `agents` its final agents rows, `settings` the
    workload's control block. The law's diagnoses are made of `concur` and `steady` alone, those of a window in tokens
    of `token_window`, the others of every policy.
    """
    pools, policy = by_pool(control), settings["policy"]
    of_policy = {"concur": LAW, "steady": LAW, "token_window": TOKENS}.get(policy, ())
    findings = []
    for name, rows in pools.items():
        case = Case(rows, settings, len(agents) // len(pools))
        found = [check(case) for check in (*ENGINE, *PLACES)]
        # Nobody is let into a pool that is down or suspended: what its window does then says nothing of it.
        at_work = replace(case, rows=[row for row in rows if row["pool_state"] == "open"])
        if len(at_work.rows) >= LEAST_PERIODS:
            found += [check(at_work) for check in of_policy]
        pool = name if len(pools) > 1 else None
        findings += [replace(finding, pool=pool) for finding in found if finding is not None]
    of_agents = [starves(agents), churns(agents) if policy == "token_window" else None]
    return [*findings, *(finding for finding in of_agents if finding is not None)]


def by_pool(control: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each KV pool, in their order."""
    pools: dict[str, list[Row]] = {}
    for row in control:
        pools.setdefault(row["pool"], []).append(row)
    return pools


def operator_changes(control: Iterable[Row]) -> list[tuple[float, str]]:
    """(seconds since the run's start, what was changed) of the operation of a run; every pool's row repeats it."""
    # By time: a restarted controller counts its periods anew.
    return sorted({(row["seconds"], row["changes"]) for row in control if row["changes"]})
