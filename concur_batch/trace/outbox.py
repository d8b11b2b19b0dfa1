"""Send many small items to an actor in few calls: one call under way, all that came meanwhile in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Outbox(Generic[Item]):
    """`send` takes a batch; when it raises, the batch stays and is sent again after `retry_seconds`.

    With an actor that restarts, nothing queued is lost; receivers therefore take items idempotently.
    """

    def __init__(
        self, send: Callable[[list[Item]], Awaitable[None]], retry_seconds: float = 0.5, most: int = 20_000
    ) -> None:
        self._send = send
        self._most = most
        self._retry_seconds = retry_seconds
        self._items: list[Item] = []
        self._wake = asyncio.Event()
        self._settled = asyncio.Condition()
        self._put = 0
        self._sent = 0
        self._task = asyncio.create_task(self._pump())
        self.last_error: Exception | None = None

    def put(self, item: Item) -> int:
        """Queue an item; returns its number, for `sent`."""
        self._items.append(item)
        self._wake.set()
        self._put += 1
        return self._put

    async def room(self) -> None:
        """Wait while too much is queued: what cannot be sent must not grow without bound."""
        if self._put - self._sent > self._most:
            await self.sent(self._put - self._most)

    async def sent(self, number: int | None = None) -> None:
        """Wait until the receiver has acknowledged the item of that number, or all that were put so far."""
        target = self._put if number is None else number
        async with self._settled:
            await self._settled.wait_for(lambda: self._sent >= target)

    def is_sent(self, number: int) -> bool:
        """Whether the receiver has acknowledged the item of that number."""
        return self._sent >= number

    async def close(self) -> None:
        """Stop without sending what is left."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _pump(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._items = self._items, []
            while batch:
                try:
                    await self._send(batch)
                except Exception as error:  # whatever the receiver failed with: it may be restarting
                    self.last_error = error
                    await asyncio.sleep(self._retry_seconds)
                    continue
                self.last_error = None
                async with self._settled:
                    self._sent += len(batch)
                    self._settled.notify_all()
                break
