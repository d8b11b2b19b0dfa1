"""The simulated engine behind SGLang's HTTP routes.

In a process of its own: `python -m concur_batch.simulator.server --config file.json`, whose content is a ServerConfig;
it prints one line with its address once it serves. `concur serve-sim` is the same for people.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web
from pydantic import ValidationError

from concur_batch.simulator.openai import OpenaiRoutes
from concur_batch.simulator.routes import Routes
from concur_batch.simulator.server_config import ConfigError, ServerConfig
from concur_batch.simulator.service import Service

__all__ = ["ConfigError", "ServerConfig", "main", "make_app", "run_server", "serve"]

_BODY_BYTES = 64 * 1024 * 1024


def make_app(config: ServerConfig) -> web.Application:
    """The web application, whose clock stops with it. To be made inside a running event loop. Raises ConfigError."""
    service = Service(config)
    app = web.Application(client_max_size=_BODY_BYTES)
    Routes(service).add_to(app.router)
    OpenaiRoutes(service).add_to(app.router)

    async def stop_clock(app: web.Application) -> None:
        service.close()

    app.on_cleanup.append(stop_clock)
    return app


async def serve(config: ServerConfig) -> tuple[web.AppRunner, int]:
    """Start serving in the running event loop; the runner (`await runner.cleanup()` stops it) and the port.

    Raises ConfigError, and OSError where the port cannot be had.
    """
    runner = web.AppRunner(make_app(config), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port, backlog=4096).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])


async def run_server(config: ServerConfig, *notes: str) -> None:
    """Serve until SIGTERM or SIGINT; prints the address once it serves, then the notes. Raises as `serve` does."""
    runner, port = await serve(config)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    print(f"simulated engine on http://{config.host}:{port}", *notes, sep="\n", flush=True)
    await stop.wait()
    await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 2: a configuration that cannot be served."""
    parser = argparse.ArgumentParser(description="A simulation of an SGLang server; its figures are simulated.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file with a ServerConfig")
    path = parser.parse_args(arguments).config
    try:
        config = ServerConfig.model_validate_json(path.read_bytes())
        asyncio.run(run_server(config))
    except ValidationError as error:
        first = error.errors()[0]
        print(f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}", file=sys.stderr)
        return 2
    except (ConfigError, OSError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
