"""`concur audit`: what a run's window trajectory says about its settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from concur_batch.control.audit import LEAST_PERIODS
from concur_batch.control.audit import audit as diagnose
from concur_batch.report.text import sparkline
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run


def audit(run: Annotated[Path, typer.Argument(help="The run's directory.")]) -> None:
    """Say how a run's window went, and every diagnosis that holds: evidence, likely cause, and what to change."""
    try:
        found = Run(run)
        control = found.table("control").sort_by("seconds").to_pylist()
        agents = found.agents_final().to_pylist()
    except TraceError as error:
        print(f"concur: {error}", file=sys.stderr)
        sys.exit(2)
    console = Console()
    settings = found.manifest["workload"]["control"]
    windows = [float(row["window_after"]) for row in control if row["window_after"] is not None]
    console.print(f"{found.manifest['run']}: policy {settings['policy']}, {len(control)} control periods")
    if windows:
        console.print(f"W {windows[0]:.0f} to {windows[-1]:.0f}  {sparkline(windows, 80)}")
    if len(control) < LEAST_PERIODS:
        console.print(f"too few to judge by: {LEAST_PERIODS} at least")
        return
    findings = diagnose(control, agents, settings)
    if not findings:
        console.print("no diagnosis holds")
        return
    table = Table(show_header=True, show_lines=True)
    for column in ("diagnosis", "evidence", "likely cause", "change"):
        table.add_column(column)
    for finding in findings:
        table.add_row(finding.name, finding.evidence, finding.cause, finding.change)
    console.print(table)
