"""The simulated server on the test's own event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from concur_batch.simulator.chat import ChatScript
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.server import ServerConfig, serve

MODEL = Path(__file__).parents[2] / "workloads" / "demo_model"
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
ENGINE = EngineConfig(pool_tokens=20_000, context_tokens=4_000)
# Ten tokens a second: a request of some size is under way until somebody ends it.
SLOW = CostModel(decode_step_seconds=0.1)


@asynccontextmanager
async def served(cost: CostModel | None = None, **fields: Any) -> AsyncIterator[str]:
    """The URL of one; a model that answers anything, unless `fields` name another."""
    source = {} if {"scripts", "synthetic"} & fields.keys() else {"chat": ChatScript(output_words=(4, 12))}
    config = ServerConfig(
        **{"engine": ENGINE, "cost": cost or CostModel.zero(), "tokenizer": MODEL, **source, **fields}
    )
    runner, port = await serve(config)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
