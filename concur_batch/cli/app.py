"""The verbs of the `concur` command."""

from __future__ import annotations

import typer

from concur_batch.cli.audit import audit
from concur_batch.cli.bench import bench
from concur_batch.cli.ctl import ctl
from concur_batch.cli.doctor import doctor
from concur_batch.cli.explain import explain
from concur_batch.cli.export import export
from concur_batch.cli.inspect import inspect
from concur_batch.cli.ls import ls
from concur_batch.cli.ps import ps
from concur_batch.cli.replay_from import replay_from
from concur_batch.cli.resume import resume
from concur_batch.cli.run import run
from concur_batch.cli.schema import schema
from concur_batch.cli.serve_sim import serve_sim
from concur_batch.cli.simulate import simulate
from concur_batch.cli.stats import stats

app = typer.Typer(
    name="concur",
    help="Run thousands of tool-using agents over one batch on SGLang, as fast as its KV cache allows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
VERBS = (
    *(run, resume, export, replay_from, simulate),
    *(ls, ps, inspect, stats, audit, explain),
    *(doctor, serve_sim, schema),
)
for verb in VERBS:
    app.command()(verb)
app.add_typer(ctl)
app.add_typer(bench)
