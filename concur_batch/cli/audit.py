"""`concur audit`: what a run's window trajectory says about its settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from concur_batch.cli.refusal import refuse
from concur_batch.control.audit import audit as diagnose
from concur_batch.control.audit import by_pool, operator_changes
from concur_batch.control.finding import LEAST_PERIODS, Finding, Row
from concur_batch.report.text import amount, counted, sparkline
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run

_BARS = 80


def audit(run: Annotated[Path, typer.Argument(help="The run's directory.")]) -> None:
    """Say how a run's windows went, what its operator changed, and every diagnosis that holds: evidence, likely cause,
    and what to change."""
    try:
        found = Run(run)
        control = found.table("control").sort_by("seconds").to_pylist()
        agents = found.agents_final().to_pylist()
    except TraceError as error:
        refuse(f"concur: {error}", 2)
    settings = found.manifest["workload"]["control"]
    pools = by_pool(control)
    periods = max(map(len, pools.values()), default=0)
    each = f" of each of {len(pools)} KV pools" if len(pools) > 1 else ""
    print(f"{found.manifest['run']}: policy {settings['policy']}, {periods} control periods{each}")
    for pool, rows in pools.items():
        for line in _trajectory(rows):
            print(line if len(pools) == 1 else f"{pool}: {line}")
    changes = operator_changes(control)
    for seconds, what in changes:
        print(f"changed at {seconds:.2f} s: {what}")
    if changes:
        print("settings below are those that the run began with")
    if periods < LEAST_PERIODS:
        print(f"too few periods to judge a window by: {LEAST_PERIODS} at least")
    findings = diagnose(control, agents, settings)
    if findings:
        _print(findings)
    else:
        print("no diagnosis holds")


def _trajectory(rows: Sequence[Row]) -> list[str]:
    """W from the first period to the last, in figures and as bars, and what was inside as a share of the room where W
    bounds tokens; nothing where nothing is bounded."""
    lines = []
    windows = [float(row["window_after"]) for row in rows if row["window_after"] is not None]
    if windows:
        branches = Counter(row["branch"] for row in rows)
        figures = f"W {windows[0]:.0f} to {windows[-1]:.0f}, least {min(windows):.0f}, most {max(windows):.0f}"
        lines += [f"{figures}, increases {branches['grow']}, cuts {branches['cut']}", _bars(windows)]
    rooms = [row for row in rows if row["window_tokens"]]
    if rooms:
        filled = [row["footprint_tokens"] / row["window_tokens"] for row in rooms]
        pauses, periods = sum(row["paused_in_period"] for row in rows), sum(row["paused_in_period"] > 0 for row in rows)
        lines.append(
            f"tokens inside: {mean(filled):.2f} of the room, least {min(filled):.2f}, most {max(filled):.2f}; "
            f"room {amount(rooms[0]['window_tokens'])} to {amount(rooms[-1]['window_tokens'])}; "
            f"{counted(pauses, 'pause')} in {counted(periods, 'period')}"
        )
        lines.append(_bars(filled))
    return lines


def _bars(values: Sequence[float]) -> str:
    """The whole way, however long."""
    bars = min(_BARS, len(values))
    return sparkline([values[bar * len(values) // bars] for bar in range(bars)], bars)


def _print(findings: Sequence[Finding]) -> None:
    table = Table(show_header=True, show_lines=True)
    for column in ("diagnosis", "evidence", "likely cause", "change"):
        table.add_column(column)
    for finding in findings:
        name = finding.name if finding.pool is None else f"{finding.pool}: {finding.name}"
        table.add_row(*map(Text, (name, finding.evidence, finding.cause, finding.change)))
    Console().print(table)
