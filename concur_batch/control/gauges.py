"""Reads the signals of every KV pool from the engines that have them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from concur_batch.engine.clients import connect
from concur_batch.engine.pools import PoolAddress
from concur_batch.engine.protocol import EngineError, Reading

# An engine that takes longer is not waited for: the other pools' control must not stand still.
PATIENCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answers:
    """A reading of every pool that has answered, and the pools whose answer may still come: they are late."""

    readings: dict[str, Reading]
    late: frozenset[str]


class Gauges:
    """One client for each server, which may have several pools. Readings count their seconds from `origin_seconds` on
    the monotonic clock, which is the run's start."""

    def __init__(self, pools: Sequence[PoolAddress], origin_seconds: float) -> None:
        self._pools = pools
        self._origin_seconds = origin_seconds
        self._engines = {pool.url: connect(pool.kind, pool.url, 10, 0, pool.api_key) for pool in pools}
        self._asked: dict[str, asyncio.Task[dict[int, Reading]]] = {}

    async def read(self, closed: Collection[str], within_seconds: float = PATIENCE_SECONDS) -> Answers:
        """Ask every server, or wait on for the answer to the last question; those `closed` must take requests again
        before they count. A question fails when the client's patience with it ends."""
        doubted = {pool.url for pool in self._pools if pool.name in closed}
        for url in self._engines.keys() - self._asked.keys():
            self._asked[url] = asyncio.create_task(self._read_replica(url, doubted=url in doubted))
        await asyncio.wait(self._asked.values(), timeout=min(PATIENCE_SECONDS, within_seconds))
        answers = {url: task.result() for url, task in self._asked.items() if task.done()}
        self._asked = {url: task for url, task in self._asked.items() if url not in answers}
        found = {pool.name: answers.get(pool.url, {}).get(pool.rank) for pool in self._pools}
        return Answers(
            {name: reading for name, reading in found.items() if reading is not None},
            frozenset(pool.name for pool in self._pools if pool.url in self._asked),
        )

    def replicas(self, pools: Collection[str]) -> list[list[str]]:
        """Of these pools, those that make up whole servers, by server."""
        by_url: dict[str, list[str]] = {}
        for pool in self._pools:
            by_url.setdefault(pool.url, []).append(pool.name)
        return [names for names in by_url.values() if set(names) <= set(pools)]

    async def close(self) -> None:
        """Let go of the engines."""
        for task in self._asked.values():
            task.cancel()
        for engine in self._engines.values():
            await engine.close()

    async def _read_replica(self, url: str, *, doubted: bool) -> dict[int, Reading]:
        engine, origin = self._engines[url], self._origin_seconds
        try:
            # One that was found down may tell its metrics before it takes requests.
            if doubted and not await engine.ready():
                return {}
            readings = await engine.read()
        except EngineError:
            return {}
        return {rank: replace(reading, at_seconds=reading.at_seconds - origin) for rank, reading in readings.items()}
