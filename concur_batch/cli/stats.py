"""`concur stats`: the distributions of one run, or of several side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from concur_batch.cli.paging import page
from concur_batch.cli.refusal import refuse
from concur_batch.report.statistics import statistics
from concur_batch.report.statistics_table import statistics_view
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run


def stats(
    runs: Annotated[list[Path], typer.Argument(help="The runs' directories.", metavar="RUN…")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how turns, tokens, times and rewards are distributed, how agents ended, and what the tools did."""
    try:
        found = statistics([Run(run) for run in runs])
    except TraceError as error:
        refuse(f"concur: {error}", 2)
    if as_json:
        print(json.dumps(found))
    else:
        page([statistics_view(found)])
