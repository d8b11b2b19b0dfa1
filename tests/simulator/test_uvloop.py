"""The server's clock on uvloop, on which Ray runs its actors: it differs from asyncio's loop for moments gone by."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import uvloop

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.server import ServerConfig, serve
from concur_batch.simulator.synthetic import SyntheticScript

MODEL = Path(__file__).parents[2] / "workloads" / "demo_model"


def test_a_hurried_clock_answers_every_request() -> None:
    async def load() -> list[int]:
        config = ServerConfig(
            engine=EngineConfig(pool_tokens=50_000),
            time_scale=5000,  # every event is due before its timer can be set
            tokenizer=MODEL,
            synthetic=SyntheticScript((3, 3)),
        )
        runner, port = await serve(config)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

                async def one(number: int) -> int:
                    body = {"rid": f"{number:04d}", "input_ids": [10 + number] * 200}
                    async with session.post("/generate", json=body) as generated, session.get("/v1/loads") as loads:
                        return max(generated.status, loads.status)

                return [status for _ in range(5) for status in await asyncio.gather(*map(one, range(40)))]
        finally:
            await runner.cleanup()

    assert set(uvloop.run(load())) == {200}
