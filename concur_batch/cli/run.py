"""`concur run`: run a workload to its end."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from concur_batch.agent.increment import rewriting
from concur_batch.agent.prompting import initial_messages, observation_role
from concur_batch.agent.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from concur_batch.cli.refusal import refuse
from concur_batch.cli.signals import Stopped, stopped_by_signals
from concur_batch.driver.cluster import Cluster, ClusterError
from concur_batch.driver.directory import make_run_directory
from concur_batch.driver.driver import Driver, Outcome, RunFailed
from concur_batch.driver.plan import Batch, make_batch
from concur_batch.engine.protocol import EngineError
from concur_batch.report.live import make_view
from concur_batch.report.summary import summarize
from concur_batch.report.table import plan_table, summary_table
from concur_batch.trace.files import TraceError
from concur_batch.trace.manifest import update_manifest, write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.tables import Tables, tables_uri
from concur_batch.workload.dryrun import plan, tool_specs
from concur_batch.workload.errors import InputError
from concur_batch.workload.fingerprint import fingerprint, identity
from concur_batch.workload.loading import Loaded, load, load_replay
from concur_batch.workload.schema import SandboxTools, SimulatedEngine, Workload
from tools_env.bubblewrap import check
from tools_env.sandbox import sweep


def run(
    workload: Annotated[
        Path | None,
        typer.Argument(help="The workload file. With --replay, its engine and control go.", metavar="[WORKLOAD.YAML]"),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the workload: --set control.policy=none", metavar="KEY=VALUE"),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(help="Replay this run's agents: the same lengths, observations and tool times.", metavar="RUN"),
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Join this Ray cluster instead of starting one. [env: RAY_ADDRESS]")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything, print what would run, touch nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as the last line, as JSON.")] = False,
) -> None:
    """Run a workload: every task's agents, to their ends. --replay without a workload file takes the run's own."""
    console = Console(stderr=as_json)
    try:
        loaded = load_replay(workload, replay, set_ or []) if replay is not None else load(_given(workload), set_ or [])
        tokenizer = load_tokenizer(loaded.workload.model.tokenizer)
        batch = make_batch(loaded, tokenizer)
        if dry_run:
            planned = plan(loaded, batch.agents, batch.tasks, tokenizer)
            if as_json:
                print(json.dumps(planned))
            else:
                console.print(plan_table(planned))
            return
        _check_sandbox(loaded)
        code = _run(loaded, batch, tokenizer, ray_address, console, as_json)
    except InputError as error:
        refuse(str(error), 2)
    except TokenizerError as error:
        refuse(f"concur: {error}", 2)
    except (ClusterError, EngineError, TraceError, RunFailed) as error:
        refuse(f"concur: {error}", 1)
    sys.exit(code)


def _given(workload: Path | None) -> Path:
    if workload is None:
        refuse("concur: no workload: give a WORKLOAD.YAML, or --replay RUN", 2)
    return workload


def _run(
    loaded: Loaded, batch: Batch, tokenizer: Tokenizer, ray_address: str | None, console: Console, as_json: bool
) -> int:
    workload = loaded.workload
    rewrites = _rewriting(workload, tokenizer) if workload.replay is None else None
    if rewrites is not None:
        console.print(f"{workload.model.tokenizer}: {rewrites}; the history keeps what the engine saw", soft_wrap=True)
    if batch.note is not None:
        console.print(batch.note, soft_wrap=True)
    try:
        run_dir = make_run_directory(workload.output, workload.name, workload.model.tokenizer)
    except TraceError as error:
        mend = "give a directory on a local disk that can be written"
        raise InputError([loaded.source.problem(("output",), str(error), mend)]) from None
    tables = tables_uri(workload.storage, run_dir.name) if workload.storage is not None else None
    try:
        if tables is not None:
            Tables(run_dir, tables).probe()
    except TraceError as error:
        shutil.rmtree(run_dir)
        mend = "give a URI that can be written, and the credentials in the environment"
        raise InputError([loaded.source.problem(("storage",), str(error), mend)]) from None
    outcome = _drive(loaded, batch, run_dir, tables, ray_address, console, rewrites)
    summary = summarize(Run(run_dir))
    console.print(summary_table(summary))
    console.print(summary["run_dir"], soft_wrap=True, highlight=False)
    if summary["unfinished"]:
        console.print(f"{summary['unfinished']} agents have not ended; what they did is saved there")
    if as_json:
        print(json.dumps(summary))
    return _exit_code(outcome, summary)


def _drive(
    loaded: Loaded,
    batch: Batch,
    run_dir: Path,
    tables: str | None,
    ray_address: str | None,
    console: Console,
    rewrites: str | None,
) -> Outcome:
    workload = loaded.workload
    engine = "SIMULATED engine" if isinstance(workload.engine, SimulatedEngine) else workload.engine.kind
    agents = f"{len(batch.agents)} {'agents' if workload.replay is None else 'replayed agents'}"
    title = f"{run_dir.name} · {engine} · {agents} · {workload.model.name} · {workload.control.policy}"
    decides = identity(workload, batch.digest)
    manifest: dict[str, Any] = {
        "workload": workload.model_dump(mode="json"),
        "workload_file": str(loaded.path),
        "fingerprint": fingerprint(decides),
        "identity": decides,  # what the fingerprint is of
        "template_rewrites_history": rewrites,
        "tables": tables,  # their URI; None: in the run directory
    }
    write_manifest(run_dir, {**manifest, "run": run_dir.name, "agents": len(batch.agents), "status": "starting"})
    with make_view(console, title) as view:
        try:
            with stopped_by_signals():
                cluster = Cluster(ray_address)
        except Stopped as stopped:
            update_manifest(run_dir, status="interrupted")
            refuse("concur: stopped before the run began", stopped.exit_code)
        except ClusterError:
            update_manifest(run_dir, status="failed")
            raise
        try:
            driver = Driver(workload, loaded.system, batch.agents, run_dir, cluster, view.show, view.note)
            return asyncio.run(driver.run(manifest))
        finally:
            cluster.close()
            sweep(run_dir / "workspaces")  # what agents that were stopped have left, now that no process holds it


def _exit_code(outcome: Outcome, summary: dict[str, Any]) -> int:
    if outcome.signal is not None:
        return 128 + outcome.signal
    return 1 if summary["failed"] or summary["unfinished"] else 0


def _rewriting(workload: Workload, tokenizer: Tokenizer) -> str | None:
    """How the chat template would rewrite earlier turns, if it does."""
    _, tools = initial_messages("", "", tool_specs(workload.tools), workload.agent.format, tokenizer.template)
    return rewriting(tokenizer.template, tools, observation_role(workload.agent.format, tokenizer.template))


def _check_sandbox(loaded: Loaded) -> None:
    if isinstance(loaded.workload.tools, SandboxTools) and loaded.workload.replay is None:
        problem = check()
        if problem is not None:
            refuse(f"concur: {problem}", 2)
