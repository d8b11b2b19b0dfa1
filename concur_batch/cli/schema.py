"""`concur schema`: the workload file as JSON Schema."""

from __future__ import annotations

import json

import typer

from concur_batch.workload.schema import Workload


def schema() -> None:
    """Print the JSON Schema of a workload file, for editors and checks."""
    typer.echo(json.dumps(Workload.model_json_schema(), indent=2))
