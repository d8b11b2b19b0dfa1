"""The `concur` command."""

from __future__ import annotations

import signal
import sys

import typer

from concur_batch.cli.audit import audit
from concur_batch.cli.explain import explain
from concur_batch.cli.run import run
from concur_batch.cli.schema import schema

app = typer.Typer(
    name="concur",
    help="Run thousands of tool-using agents over one batch on SGLang, as fast as its KV cache allows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(audit)
app.command()(explain)
app.command()(schema)


def main() -> None:
    """Entry point. A Ctrl-C before a run has begun, or after, finds nothing to save."""
    try:
        app()
    except KeyboardInterrupt:
        print("concur: stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
