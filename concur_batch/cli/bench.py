"""`concur bench`: benchmarks that need no server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from concur_batch.bench.paper.bench import Choice, run_bench
from concur_batch.bench.paper.cells import PARTS, ROWS
from concur_batch.cli.refusal import nearest, refuse
from concur_batch.trace.files import TraceError
from concur_batch.workload.errors import InputError

bench = typer.Typer(name="bench", help="Benchmarks in simulated time: concur bench paper", no_args_is_help=True)


@bench.callback()
def benches() -> None:
    """Benchmarks in simulated time."""


@bench.command()
def paper(
    seeds: Annotated[int, typer.Option(min=1, help="Loads of each row, drawn with other seeds.")] = 3,
    only: Annotated[
        str | None, typer.Option(help=f"Only these parts: {', '.join(PARTS)}.", metavar="PART,…", show_default="all")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help=f"Only these rows: {', '.join(ROWS)}.", metavar="ROW,…", show_default="all")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where to put the tables, Parquet files and page.")] = Path(
        "runs/bench-paper"
    ),
) -> None:
    """Simulate the tables and figures of the CONCUR paper, each beside the paper's number."""
    choice = Choice(_named(only, tuple(PARTS), "--only"), _named(rows, ROWS, "--rows"), seeds)
    try:
        run_bench(choice, out, Console())
    except InputError as error:
        refuse(str(error), 2)
    except TraceError as error:
        refuse(f"concur: {error}", 1)


def _named(given: str | None, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    """The names of a list with commas, in the order of the known ones; all where none is given."""
    if given is None:
        return known
    names = [name.strip() for name in given.split(",")]
    for name in names:
        if name not in known:
            refuse(f"concur: {option}: there is no {name!r}{nearest(name, known)}", 2)
    return tuple(name for name in known if name in names)
