"""The simulated engine of a run: SGLang's routes over the simulator, in a Ray actor."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from concur_batch.engine.protocol import EngineError
from concur_batch.simulator.server import ConfigError, ServerConfig, serve
from concur_batch.simulator.synthetic import SyntheticScript
from concur_batch.workload.schema import Agent, SimulatedEngine
from concur_batch.workload.simulated import cost_model, engine_config


class SimulatedServer:
    """Serves until `stop`. `tokenizer` is a directory that this node sees."""

    def __init__(
        self, engine: SimulatedEngine, agent: Agent, tokenizer: Path, model_name: str, host: str, seed: int
    ) -> None:
        self._host = host
        self._config = ServerConfig(
            engine=engine_config(engine),
            dp_size=engine.dp_size,
            cost=cost_model(engine),
            time_scale=engine.time_scale,
            tokenizer=tokenizer,
            scripts=engine.script,
            synthetic=None
            if engine.synthetic is None
            else SyntheticScript(engine.synthetic.turns, engine.synthetic.output_words, seed),
            format=agent.format,
            model_name=model_name,
            host=host,
        )
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Begin to serve; returns the URL. Raises EngineError."""
        try:
            self._runner, port = await serve(self._config)
        except (ConfigError, OSError) as error:
            raise EngineError(f"the simulated engine cannot serve: {error}") from None
        return f"http://{self._host}:{port}"

    async def alive(self) -> bool:
        """An actor that answers this serves."""
        return self._runner is not None

    async def stop(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
