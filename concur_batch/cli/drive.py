"""What `concur run` and `concur resume` have in common: the batch is run, with a view of it, and its end is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from concur_batch.agent.instructions import Instructions
from concur_batch.agent.spec import AgentSpec
from concur_batch.cli.refusal import refuse
from concur_batch.cli.signals import Stopped, stopped_by_signals
from concur_batch.driver.cluster import Cluster, ClusterError
from concur_batch.driver.driver import Before, Driver, Outcome, RunFailed
from concur_batch.driver.leftovers import end_leftovers
from concur_batch.driver.plan import Batch
from concur_batch.engine.protocol import EngineError
from concur_batch.report.live import make_view
from concur_batch.report.summary import summarize
from concur_batch.report.table import summary_table
from concur_batch.trace.files import TraceError, is_locked, locked
from concur_batch.trace.manifest import update_manifest, write_manifest
from concur_batch.trace.reading import Run
from concur_batch.workload.dryrun import tool_specs
from concur_batch.workload.fingerprint import fingerprint, identity
from concur_batch.workload.loading import Loaded
from concur_batch.workload.schema import SandboxTools, SimulatedEngine
from tools_env.bubblewrap import check
from tools_env.sandbox import forget_all, sweep

_LOCK = ".driver.lock"


@dataclass(frozen=True, slots=True)
class Drive:
    """What is to be run: these `agents`; `before` where a run goes on, of which they are not all."""

    loaded: Loaded
    agents: Sequence[AgentSpec]
    run_dir: Path
    manifest: Mapping[str, Any]
    before: Before | None = None

    @property
    def total(self) -> int:
        """Of agents in the batch."""
        return len(self.agents if self.before is None else self.before.everyone)


def told(loaded: Loaded, batch: Batch) -> dict[str, Any]:
    """What a manifest says of the workload."""
    workload = loaded.workload
    decides = identity(workload, batch.digest)
    instructions = Instructions(workload.agent.format, loaded.system, tool_specs(workload.tools))
    return {
        "workload": workload.model_dump(mode="json"),
        "workload_file": str(loaded.path),
        "fingerprint": fingerprint(decides),
        "identity": decides,  # what the fingerprint is of
        "prompting": instructions.to_json() if workload.replay is None else None,
    }


def holding(run_dir: Path) -> AbstractContextManager[bool]:
    """Keeps other commands from running the same run; False where one runs it already. Raises TraceError."""
    return locked(run_dir / _LOCK)


def held(run_dir: Path) -> bool:
    """Whether a command runs it now."""
    return is_locked(run_dir / _LOCK)


def end_dead_runs(console: Console) -> None:
    """Before another run begins: what dead ones have left on this machine would share it."""
    ended = end_leftovers()
    if ended:
        console.print(f"ended {ended} processes that a dead run had left behind")


def check_sandbox(loaded: Loaded) -> None:
    """End the command where the workload's tools cannot run here."""
    if isinstance(loaded.workload.tools, SandboxTools) and loaded.workload.replay is None:
        problem = check()
        if problem is not None:
            refuse(f"concur: {problem}", 2)


def drive(work: Drive, ray_address: str | None, console: Console, as_json: bool) -> int:
    """Run it to its end, or until it is stopped, and say how it ended; the exit code."""
    run_dir = work.run_dir
    try:
        outcome = _drive(work, ray_address, console)
    except (ClusterError, EngineError, TraceError, RunFailed) as error:
        refuse(f"concur: {error}; it goes on with `concur resume {run_dir}`", 1)
    summary = summarize(Run(run_dir))
    console.print(summary_table(summary))
    console.print(summary["run_dir"], soft_wrap=True, highlight=False)
    if not summary["unfinished"]:
        forget_all(run_dir / "workspaces")
    else:
        console.print(f"{summary['unfinished']} agents have not ended; what they did is saved there. To go on:")
        console.print(f"concur resume {run_dir}", soft_wrap=True, highlight=False)
    if as_json:
        print(json.dumps(summary))
    return _exit_code(outcome, summary)


def _drive(work: Drive, ray_address: str | None, console: Console) -> Outcome:
    run_dir, workload = work.run_dir, work.loaded.workload
    engine = "SIMULATED engine" if isinstance(workload.engine, SimulatedEngine) else workload.engine.kind
    agents = f"{work.total} {'agents' if workload.replay is None else 'replayed agents'}"
    title = f"{run_dir.name} · {engine} · {agents} · {workload.model.name} · {workload.control.policy}"
    write_manifest(run_dir, {**work.manifest, "run": run_dir.name, "agents": work.total, "status": "starting"})
    with make_view(console, title) as view:
        try:
            with stopped_by_signals():
                cluster = Cluster(ray_address)
        except Stopped as stopped:
            update_manifest(run_dir, status="interrupted")
            refuse(f"concur: stopped before the run began; it begins with `concur resume {run_dir}`", stopped.exit_code)
        except ClusterError:
            update_manifest(run_dir, status="failed")
            raise
        try:
            driver = Driver(
                workload, work.loaded.system, work.agents, run_dir, cluster, view.show, view.note, work.before
            )
            return asyncio.run(driver.run(dict(work.manifest)))
        finally:
            cluster.close()
            sweep(run_dir / "workspaces")  # what agents that were stopped have left, now that no process holds it


def _exit_code(outcome: Outcome, summary: dict[str, Any]) -> int:
    if outcome.signal is not None:
        return 128 + outcome.signal
    return 1 if summary["failed"] or summary["unfinished"] else 0
