"""The simulated engine behind the command line of a launched SGLang, so that a run starts it, and starts it again."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from concur_batch.simulator.server import ServerConfig, run_server

CONFIG = "CHAOS_ENGINE"
"""The environment variable with the path of a JSON file: a ServerConfig but for host and port."""


def main() -> None:
    """Serve until SIGTERM."""
    given = dict(zip(sys.argv, sys.argv[1:], strict=False))
    config = json.loads(Path(os.environ[CONFIG]).read_bytes())
    address = {"host": given["--host"], "port": int(given["--port"])}
    asyncio.run(run_server(ServerConfig.model_validate(config | address)))
