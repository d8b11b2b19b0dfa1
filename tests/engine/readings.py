"""Readings of a server before and after what a test asks of it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from concur_batch.engine.protocol import Reading


class Client(Protocol):
    async def read(self) -> dict[int, Reading]: ...


async def until(client: Client, running: int) -> Reading:
    """The first reading with so many requests in the engine, and of them no tokens untold."""
    async with asyncio.timeout(30):
        while True:
            (reading,) = (await client.read()).values()
            if reading.running_requests == running and (reading.locked_tokens == 0) == (running == 0):
                return reading
            await asyncio.sleep(0.05)


def grown(before: Reading, after: Reading, name: str) -> int:
    """A counter's difference; 0 of what the engine does not tell."""
    return (getattr(after, name) or 0) - (getattr(before, name) or 0)
