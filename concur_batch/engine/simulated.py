"""The simulated engine of a run: SGLang's routes over the simulator, in a Ray actor."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from concur_batch.engine.protocol import EngineError
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.server import ConfigError, ServerConfig, serve
from concur_batch.simulator.synthetic import SyntheticScript
from concur_batch.workload.schema import Agent, SimulatedEngine


class SimulatedServer:
    """Serves until `stop`. `tokenizer` is a directory that this node sees."""

    def __init__(
        self, engine: SimulatedEngine, agent: Agent, tokenizer: Path, model_name: str, host: str, seed: int
    ) -> None:
        self._host = host
        self._config = ServerConfig(
            engine=EngineConfig(
                pool_tokens=engine.pool_tokens,
                page_size=engine.page_size,
                context_tokens=engine.context_tokens,
                chunked_prefill_tokens=engine.chunked_prefill_tokens,
                max_running_requests=engine.max_running_requests,
            ),
            cost=CostModel(**engine.cost.model_dump()),
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

    async def stop(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
