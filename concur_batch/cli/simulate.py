"""`concur simulate`: a workload in virtual time, under one or several policies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from concur_batch.bench.fit import CannotFit
from concur_batch.bench.forecast import recommend
from concur_batch.bench.forecast_table import as_json, as_table, heading, notes
from concur_batch.cli.refusal import refuse
from concur_batch.cli.study import Source, Study
from concur_batch.trace.files import TraceError
from concur_batch.workload.errors import InputError
from concur_batch.workload.explain import one_of
from concur_batch.workload.sweep import POLICIES, read_sweep

_SEEDS = 3
_LEAST_WIDTH = 160


def simulate(
    workload: Annotated[
        Path | None,
        typer.Argument(help="The workload file. With --from, its engine and control go.", metavar="[WORKLOAD.YAML]"),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="A policy to simulate, as often as needed. Default: the workload's, and none.", metavar="NAME"
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override a key of the workload: --set simulate.gpu=h200", metavar="KEY=VALUE"),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Try each value: --sweep control.u_high=0.4,0.5. Several: all combinations.", metavar="KEY=V,V"
        ),
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Take lengths and tool times from this recorded run, or file.", metavar="RUN|FILE"),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help=f"Draw the load so many times. Default: {_SEEDS}.", metavar="N")
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict how long a workload takes, and under which setting least. Nothing runs: every figure is simulated."""
    if workload is None and from_ is None:
        refuse("concur: no workload: give a WORKLOAD.YAML, or --from RUN", 2)
    for name in policy or ():
        if name not in POLICIES:
            refuse(f"concur: --policy {name}: no such policy; {one_of(name, POLICIES)}", 2)
    if seeds is not None and seeds < 1:
        refuse(f"concur: --seeds {seeds}: there is nothing to simulate; give at least 1", 2)
    try:
        source = Source(workload, from_, tuple(set_ or ()))
        study = Study.of(source, policy or [], [read_sweep(text) for text in sweep or ()])
        if seeds is not None and not study.drawn:
            refuse("concur: --seeds: what is recorded has one load; leave it out", 2)
        outcome = study.simulated(seeds or _SEEDS)
    except InputError as error:
        refuse(str(error), 2)
    except (CannotFit, TraceError) as error:
        refuse(f"concur: {error}", 2)
    except RuntimeError as error:
        refuse(f"concur: simulated: {error}", 1)
    best = recommend(outcome.forecasts)
    if as_json_:
        print(json.dumps(as_json(outcome, best)))
    else:
        # A row is one line, also where the terminal is narrower.
        console = Console(width=max(Console().width, _LEAST_WIDTH))
        for line in heading(outcome):
            console.print(line, soft_wrap=True, highlight=False)
        console.print(as_table(outcome))
        for note in notes(outcome, best):
            console.print(note, soft_wrap=True, highlight=False)
    sys.exit(0)
