"""`concur explain`: one agent's life in order of time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow.compute as pc
import typer

from concur_batch.cli.refusal import nearest, refuse
from concur_batch.report.life import tell
from concur_batch.report.printable import one_line
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run


def explain(
    run: Annotated[Path, typer.Argument(help="The run's directory.")],
    agent: Annotated[str, typer.Option(help="The agent's id: its task's id, a slash, and the sample.")],
) -> None:
    """Tell one agent's life: waits, generations, tool calls, pauses and its end. Also while the run goes on."""
    try:
        found = Run(run)
        of_agent = pc.field("agent_id") == agent
        attempts, turns, tools = (
            found.table(name, filter=of_agent, few=True).to_pylist() for name in ("agents", "turns", "tools")
        )
        if not attempts and not turns:
            known = sorted(set(found.table("turns", columns=["agent_id"])["agent_id"].to_pylist()))
            refuse(f"concur: --agent {agent}: no such agent has done anything in {run}{nearest(agent, known)}", 2)
    except TraceError as error:
        refuse(f"concur: {error}", 2)
    for seconds, what in tell(attempts, turns, tools, found.table("control").to_pylist()):
        print(f"{seconds:9.2f}  {one_line(what)}")
