"""`concur ctl`: operate a run that goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from concur_batch.cli.refusal import nearest, refuse
from concur_batch.driver.operate import NoAnswer, NotRunning, Operation, operating
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run
from concur_batch.workload.errors import InputError

ctl = typer.Typer(name="ctl", help="Operate a run that goes on: concur ctl RUN pause", no_args_is_help=True)


@ctl.callback()
def of_run(
    context: typer.Context, run: Annotated[Path, typer.Argument(help="The run's directory.", show_default=False)]
) -> None:
    """Operate a run that goes on. Every change goes on record, in the control table's `changes`."""
    context.obj = run


@ctl.command("set")
def set_(
    context: typer.Context,
    settings: Annotated[list[str], typer.Argument(help="As `--set` of `concur run` takes it.", metavar="KEY=VALUE…")],
) -> None:
    """Change settings under `control.`, from the next control period on: concur ctl RUN set control.u_high=0.6"""
    with _run(context) as (_, operation):
        lines = operation.ask("set", settings)
    print(f"set {', '.join(lines)}" if lines else "nothing to change: that is how it is set")


@ctl.command()
def pause(context: typer.Context) -> None:
    """Let no agent start another generation; those that generate end their turn."""
    with _run(context) as (_, operation):
        news = operation.ask("suspend", True)
    print("paused: turns under way end, no agent starts another" if news else "it is paused already")


@ctl.command()
def resume(context: typer.Context) -> None:
    """Go on after a pause."""
    with _run(context) as (_, operation):
        news = operation.ask("suspend", False)
    print("resumed" if news else "it is not paused")


@ctl.command()
def cancel(
    context: typer.Context,
    agent: Annotated[str, typer.Argument(help="The agent's id: its task's id, a slash, the sample.")],
) -> None:
    """End an agent now, with status `cancelled`: its generation is aborted, its tool killed."""
    with _run(context) as (run, operation):
        if not operation.ask("cancel", agent):
            _explain_absence(run, operation, agent)
    print(f"cancelled {agent}")


def _explain_absence(run: Run, operation: Operation, agent: str) -> NoReturn:
    """Say why an agent cannot be cancelled."""
    picture = operation.ask("picture")
    running = [row["agent_id"] for row in picture["agents"]]
    ended = {row["agent_id"]: row["status"] for row in run.agents_final().select(["agent_id", "status"]).to_pylist()}
    if agent in ended:
        refuse(f"concur: {agent} has ended already: {ended[agent]}", 2)
    if agent in running:
        refuse(f"concur: {agent} is at its end already", 2)
    if picture["silent_hosts"]:
        refuse(f"concur: {agent}: not found, but {', '.join(picture['silent_hosts'])} does not answer; try again", 1)
    refuse(f"concur: {agent}: no such agent in this run{nearest(agent, [*running, *ended])}", 2)


@contextmanager
def _run(context: typer.Context) -> Iterator[tuple[Run, Operation]]:
    """The run and its controller; what goes wrong is a line and an exit code."""
    try:
        run = Run(context.obj)
        with operating(run) as operation:
            yield run, operation
    except InputError as error:
        refuse(str(error), 2)
    except NotRunning as error:
        refuse(f"concur: {error}", 2)
    except TraceError as error:
        refuse(f"concur: {error}", 2)
    except NoAnswer as error:
        refuse(f"concur: {error}", 1)
