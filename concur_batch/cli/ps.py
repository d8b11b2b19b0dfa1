"""`concur ps`: how a run stands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from concur_batch.cli.paging import PIPE_COLUMNS
from concur_batch.cli.refusal import refuse
from concur_batch.driver.operate import NoAnswer, NotRunning, operating
from concur_batch.report.standing import STATES, list_view, overview_view, standing
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run
from concur_batch.workload.explain import one_of

_ENDED = ("agent_id", "attempt", "status", "replica", "turns", "context_tokens", "generation_seconds", "tool_seconds")


def ps(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    all_: Annotated[bool, typer.Option("--all", help="List every agent that has not ended.")] = False,
    state: Annotated[
        str | None, typer.Option(help=f"List the agents in this state: {', '.join(STATES)}.", metavar="STATE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show agents by state, the longest waits, stragglers and the windows, of a run that goes on or has ended."""
    if state is not None and state not in STATES:
        refuse(f"concur: --state {state}: no such state; {one_of(state, STATES)}", 2)
    try:
        picture = _look(run)
    except TraceError as error:
        refuse(f"concur: {error}", 2)
    except NoAnswer as error:
        refuse(f"concur: {error}", 1)
    states = STATES if state is None else (state,)
    listed = all_ or state is not None
    if as_json:
        agents = [agent for agent in picture.pop("running") if agent["state"] in states]
        print(json.dumps(picture | ({"listed": agents} if listed else {})))
        return
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_COLUMNS)
    console.print(list_view(picture, states) if listed else overview_view(picture), highlight=False)


def _look(run: Path) -> dict[str, Any]:
    """The picture, live where the run is, and else from what it has left."""
    note, live = "", None
    try:
        with operating(Run(run)) as operation:
            live = operation.ask("picture")
    except NotRunning as reason:
        note = str(reason)
    found = Run(run)  # anew: it may have ended meanwhile
    ended = found.table("agents", columns=[*_ENDED, "final"]).to_pylist()
    if live is not None:
        control = list(live["control"]["pools"].values())
    else:
        rows = found.table("control").sort_by("seconds").to_pylist()
        control = list({row["pool"]: row for row in rows}.values())
    return standing(found.manifest, [row for row in ended if row["final"]], control, live, note)
