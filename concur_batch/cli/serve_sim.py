"""`concur serve-sim`: an engine without a GPU, for any client."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from concur_batch.bench.load import DEMO_MODEL
from concur_batch.cli.refusal import refuse
from concur_batch.engine.simulated import server_config
from concur_batch.simulator.chat import ChatScript
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.server import ConfigError, ServerConfig, run_server
from concur_batch.workload.errors import InputError, shown_path
from concur_batch.workload.hardware import hardware_of, has_costs
from concur_batch.workload.loading import load
from concur_batch.workload.schema import SimulatedEngine, SyntheticScript

_PORT = 30_000  # SGLang's


def serve_sim(
    workload: Annotated[
        Path | None,
        typer.Argument(
            help="Serve this workload's simulated engine, or, on the hardware that its `simulate` section names, a "
            "model that answers anything. Default: such a model.",
            metavar="[WORKLOAD.YAML]",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Where to listen; 0: any free port.")] = _PORT,
    time_scale: Annotated[float | None, typer.Option(help="Simulated seconds per real second.")] = None,
    pool_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens that the KV pool holds.")] = None,
    context_tokens: Annotated[int | None, typer.Option(min=1, help="Longest context of the model.")] = None,
    page_size: Annotated[int | None, typer.Option(min=1, help="Tokens per page of the pool.")] = None,
    model_name: Annotated[str | None, typer.Option(help="The name under which the model is served.")] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Directory of a model's tokenizer.", metavar="DIR")] = None,
) -> None:
    """Serve a simulated SGLang with its HTTP routes and OpenAI's, until Ctrl-C. No GPU, no model: all is simulated."""
    sizes = {
        "time_scale": time_scale,
        "pool_tokens": pool_tokens,
        "context_tokens": context_tokens,
        "page_size": page_size,
    }
    given = {key: value for key, value in sizes.items() if value is not None}
    try:
        if workload is None:
            engine = SimulatedEngine(kind="simulated", synthetic=SyntheticScript(), **given)
            config = server_config(
                engine, tokenizer or DEMO_MODEL, model_name or "simulated", chat=ChatScript(), host=host, port=port
            )
        else:
            overrides = [f"model.name={model_name}"] if model_name is not None else []
            overrides += [f"model.tokenizer={tokenizer.resolve()}"] if tokenizer is not None else []
            config = _of_workload(workload, overrides, given, host, port)
        asyncio.run(run_server(config, *_notes(config)))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C finds nothing to stop
    except InputError as error:
        refuse(str(error), 2)
    except ValidationError as error:
        first = error.errors()[0]
        place = f"--{str(first['loc'][0]).replace('_', '-')}: " if first["loc"] else ""
        refuse(f"concur: {place}{first['msg']}", 2)
    except (ConfigError, OSError) as error:
        refuse(f"concur: {error}", 2)


def _of_workload(path: Path, overrides: list[str], sizes: Mapping[str, Any], host: str, port: int) -> ServerConfig:
    """Raises InputError where the file is wrong, or its engine is real and it names no hardware to simulate."""
    loaded = load(path, overrides)
    workload, engine = loaded.workload, loaded.workload.engine
    name, tokenizer = workload.model.name, workload.model.tokenizer
    if isinstance(engine, SimulatedEngine):
        engine = engine.model_copy(update=sizes)
        form, seed = workload.agent.format, workload.seed
        return server_config(engine, tokenizer, name, form=form, seed=seed, host=host, port=port)
    if not has_costs(loaded):
        reason = f"is {engine.kind}, a real server"
        mend = "add `simulate: {gpu: …}`, or give a workload whose engine is simulated, or none"
        raise InputError([loaded.source.problem(("engine", "kind"), reason, mend)])
    hardware = hardware_of(loaded)
    config = next(iter(hardware.engines.values()))  # of one pool
    changed = {key: value for key, value in sizes.items() if key != "time_scale"}
    return ServerConfig(
        engine=EngineConfig(**{**asdict(config), **changed}),
        cost=hardware.cost,
        time_scale=sizes.get("time_scale", 1.0),
        tokenizer=tokenizer,
        chat=ChatScript(),
        model_name=name,
        host=host,
        port=port,
    )


def _notes(config: ServerConfig) -> tuple[str, ...]:
    says = (
        "answers anything"
        if config.chat is not None
        else f"follows {shown_path(config.scripts)}"
        if config.scripts is not None
        else "is the synthetic load"
    )
    engine = config.engine
    return (
        f"model {config.model_name}: {says}; tokenizer {shown_path(config.tokenizer)}",
        f"pool {engine.pool_tokens} tokens in pages of {engine.page_size}, context {engine.context_tokens}, "
        f"{config.time_scale:g} simulated seconds a second; every answer and every figure is simulated",
        "Ctrl-C stops it",
    )
