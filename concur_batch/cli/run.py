"""`concur run`: run a workload to its end."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from concur_batch.agent.increment import rewriting
from concur_batch.agent.prompting import initial_messages, observation_role
from concur_batch.agent.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from concur_batch.cli.drive import Drive, check_sandbox, drive, end_dead_runs, holding, told
from concur_batch.cli.refusal import refuse
from concur_batch.driver.directory import make_run_directory
from concur_batch.driver.plan import Batch, make_batch
from concur_batch.report.table import plan_table
from concur_batch.trace.files import TraceError
from concur_batch.trace.manifest import MANIFEST
from concur_batch.trace.tables import Tables, tables_uri
from concur_batch.workload.dryrun import plan, tool_specs
from concur_batch.workload.errors import InputError
from concur_batch.workload.loading import Loaded, load, load_replay
from concur_batch.workload.schema import Workload


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
        typer.Option(
            help="Replay the agents of this run, or file of `replay-from`: the same lengths, observations and times.",
            metavar="RUN|FILE",
        ),
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
        check_sandbox(loaded)
        code = _run(loaded, batch, tokenizer, ray_address, console, as_json)
    except InputError as error:
        refuse(str(error), 2)
    except TokenizerError as error:
        refuse(f"concur: {error}", 2)
    except TraceError as error:
        refuse(f"concur: {error}", 1)
    sys.exit(code)


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
    manifest = {**told(loaded, batch), "template_rewrites_history": rewrites, "tables": tables}
    end_dead_runs(console)
    with holding(run_dir) as held:
        assert held, "it is new"
        return drive(Drive(loaded, batch.agents, run_dir, manifest), ray_address, console, as_json)


def _given(workload: Path | None) -> Path:
    if workload is None:
        refuse("concur: no workload: give a WORKLOAD.YAML, or --replay RUN", 2)
    run_dir = workload.parent if workload.name == MANIFEST else workload
    if (run_dir / MANIFEST).is_file():
        refuse(f"concur: {workload} is a run, not a workload: it goes on with `concur resume {run_dir}`", 2)
    return workload


def _rewriting(workload: Workload, tokenizer: Tokenizer) -> str | None:
    """How the chat template would rewrite earlier turns, if it does."""
    _, tools = initial_messages("", "", tool_specs(workload.tools), workload.agent.format, tokenizer.template)
    return rewriting(tokenizer.template, tools, observation_role(workload.agent.format, tokenizer.template))
