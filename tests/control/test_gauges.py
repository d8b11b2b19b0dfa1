"""The gauges of several servers, one of which is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientTimeout, web

from concur_batch.control.gauges import Gauges
from concur_batch.engine.pools import PoolAddress

METRICS = "sglang:max_total_num_tokens 100.0\nsglang:kv_used_tokens 25.0\n"


class Server:
    """Answers /metrics when it is let."""

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.let.set()
        self.asked = 0
        self.is_ready = True

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/ready", self.ready)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def metrics(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.let.wait()
        return web.Response(text=METRICS)

    async def ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 503)


@pytest.fixture
async def servers() -> AsyncIterator[list[Server]]:
    made = [Server(), Server()]
    for server in made:
        await server.start()
    yield made
    for server in made:
        await server.runner.cleanup()


def gauges(servers: list[Server]) -> Gauges:
    addresses = [PoolAddress(str(number), server.url, None, None, 1, 100) for number, server in enumerate(servers)]
    return Gauges(addresses, origin_seconds=0.0)


async def test_a_slow_server_keeps_nobody_waiting_and_is_asked_once(servers: list[Server]) -> None:
    made = gauges(servers)
    servers[1].let.clear()
    for _ in range(2):
        answers = await made.read(closed=())
        assert (answers.readings.keys(), answers.late) == ({"0"}, {"1"})
    assert (servers[0].asked, servers[1].asked) == (2, 1)
    servers[1].let.set()
    answers = await made.read(closed=())
    assert (answers.readings.keys(), answers.late) == ({"0", "1"}, set())
    assert answers.readings["1"].locked_tokens == 25
    await made.close()


async def test_a_server_that_is_gone_is_not_late(servers: list[Server]) -> None:
    made = gauges(servers)
    await servers[1].runner.cleanup()
    answers = await made.read(closed=())
    assert (answers.readings.keys(), answers.late) == ({"0"}, set())
    await made.close()


async def test_a_question_that_fails_is_late_no_more(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that takes connections and answers nothing: whichever reading of a period its question ends in."""
    monkeypatch.setattr("concur_batch.engine.http.READ_TIMEOUT", ClientTimeout(total=0.3))
    made = gauges(servers)
    servers[1].let.clear()
    late = [bool((await made.read(closed=(), within_seconds=0.1)).late) for _ in range(9)]
    assert True in late
    assert False in late[1:]
    await made.close()


def test_the_servers_of_some_pools() -> None:
    """Two ranks on one server, one on another: a server is gone once all its pools are."""
    addresses = [
        PoolAddress("0.0", "http://a", None, 0, 1, 100),
        PoolAddress("0.1", "http://a", None, 1, 1, 100),
        PoolAddress("1", "http://b", None, None, 1, 100),
    ]

    async def of(*pools: str) -> list[list[str]]:
        made = Gauges(addresses, 0.0)
        await made.close()
        return made.replicas(pools)

    assert asyncio.run(of("0.0", "1")) == [["1"]]
    assert asyncio.run(of("0.0", "0.1")) == [["0.0", "0.1"]]


async def test_a_closed_pool_counts_again_once_its_server_takes_requests(servers: list[Server]) -> None:
    made = gauges(servers)
    servers[1].is_ready = False
    assert (await made.read(closed={"1"})).readings.keys() == {"0"}
    assert (await made.read(closed=())).readings.keys() == {"0", "1"}
    servers[1].is_ready = True
    assert (await made.read(closed={"1"})).readings.keys() == {"0", "1"}
    await made.close()
