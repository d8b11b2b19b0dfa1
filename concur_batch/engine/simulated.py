"""The simulated engine of a workload: SGLang's routes over the simulator, in a Ray actor of a run or on their own."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from concur_batch.engine.protocol import EngineError
from concur_batch.simulator.chat import ChatScript
from concur_batch.simulator.conversation import ActionFormat
from concur_batch.simulator.server import ConfigError, ServerConfig, serve
from concur_batch.simulator.synthetic import SyntheticScript
from concur_batch.workload.schema import Agent, SimulatedEngine
from concur_batch.workload.simulated import cost_model, engine_config


def server_config(
    engine: SimulatedEngine,
    tokenizer: Path,
    model_name: str,
    *,
    form: ActionFormat = "hermes",
    seed: int = 0,
    chat: ChatScript | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
) -> ServerConfig:
    """What is served for a workload's engine; with `chat`, a model that answers anybody instead of the engine's own.

    Sizes (EngineConfig) and costs (CostModel) are the engine's own. Raises pydantic's ValidationError where they do not
    go together.
    """
    synthetic = engine.synthetic
    return ServerConfig(
        engine=engine_config(engine),
        dp_size=engine.dp_size,
        cost=cost_model(engine),
        time_scale=engine.time_scale,
        tokenizer=tokenizer,
        scripts=engine.script if chat is None else None,
        synthetic=None
        if synthetic is None or chat is not None
        else SyntheticScript(synthetic.turns, synthetic.output_words, seed),
        chat=chat,
        format=form,
        model_name=model_name,
        host=host,
        port=port,
    )


class SimulatedServer:
    """Serves until `stop`. `tokenizer` is a directory that this node sees."""

    def __init__(
        self, engine: SimulatedEngine, agent: Agent, tokenizer: Path, model_name: str, host: str, seed: int
    ) -> None:
        self._host = host
        self._config = server_config(engine, tokenizer, model_name, form=agent.format, seed=seed, host=host)
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
