"""What the clients of all servers do alike, against servers that misbehave in every way that a real one has been seen
to: retries, timeouts, refusals, deaths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from aiohttp import web
from fake_servers import REQUEST, SAMPLING, Fake, FakeSglang, FakeVllm, Reply, answers, breaks, hangs, says

from concur_batch.engine.protocol import ContextOverflow, EngineDown, EngineError, PoolOverflow, RequestRejected

boom = says(500, "boom")


@pytest.fixture(params=[FakeSglang, FakeVllm], ids=lambda fake: fake.server)
async def server(request: pytest.FixtureRequest, at_once: None) -> AsyncIterator[Fake]:
    fake: Fake = request.param()
    await fake.start()
    yield fake
    await fake.runner.cleanup()


def good(server: Fake) -> Reply:
    return answers(server.answer)


@pytest.mark.parametrize(
    "fault",
    [
        boom,
        says(503, "The request queue is full."),
        says(429, "slow"),
        says(408, "late"),
        says(200, "no json"),
        answers({}),
        answers([]),
    ],
)
async def test_a_fault_is_tried_again_under_a_rid_of_its_own(server: Fake, fault: Reply) -> None:
    assert (await server.ask(fault, good(server))).attempts == 2
    first, second = server.rids
    assert first != second
    assert len(first) == len(second)  # neither can be the beginning of the other, by which engines abort
    assert first.startswith(REQUEST.rid)


async def test_the_same_request_sent_again_has_another_rid(server: Fake) -> None:
    """The engine may still work on the first, of which it has not noticed that nobody waits."""
    server.replies = [good(server)] * 2
    engine = server.client(server.url, 5, 0)
    for _ in range(2):
        await engine.generate(REQUEST)
    await engine.close()
    first, second = server.rids
    assert first != second and len(first) == len(second)


async def test_clients_make_no_rid_twice(server: Fake) -> None:
    """All probe under the same name, and a server refuses a rid that it has already."""
    for _ in range(3):
        server.replies = [good(server)]
        await server.probe()
    assert len(set(server.rids)) == 3
    assert len({len(rid) for rid in server.rids}) == 1


async def test_the_waits_between_tries_are_random_and_grow(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return 0.0

    monkeypatch.setattr("concur_batch.engine.http.random.uniform", draw)
    with pytest.raises(EngineError):
        await server.ask(*[boom] * 7, retries=6)
    assert drawn == [(0, 2), (0, 4), (0, 8), (0, 16), (0, 30), (0, 30)]


async def test_a_late_answer_to_an_earlier_try_is_passed_over(server: Fake) -> None:
    asked_again, answered = asyncio.Event(), asyncio.Event()

    async def late() -> web.StreamResponse:
        await asked_again.wait()
        answered.set()
        return await boom()

    async def second() -> web.StreamResponse:
        asked_again.set()
        if not server.drops_what_hangs_up:
            await answered.wait()
        return await good(server)()

    assert (await server.ask(late, second, seconds=0.5)).attempts == 2


async def test_more_requests_than_a_pool_of_connections_usually_has_are_under_way_at_once(server: Fake) -> None:
    """None is answered before all are there."""
    count, all_there = 400, asyncio.Event()

    async def waits() -> web.StreamResponse:
        if len(server.bodies) == count:
            all_there.set()
        await all_there.wait()
        return await good(server)()

    server.replies = [waits] * count
    engine = server.client(server.url, 60, 0)
    generations = await asyncio.gather(*(engine.generate(REQUEST) for _ in range(count)))
    await engine.close()
    assert {generation.attempts for generation in generations} == {1}
    assert len(set(server.rids)) == count


async def test_a_connection_that_has_rested_long_is_not_used_again(
    server: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rest_seconds, connections in ((60, 1), (0.05, 2)):
        monkeypatch.setattr("concur_batch.engine.http._REST_SECONDS", rest_seconds)
        server.replies, server.peers = [good(server)] * 2, set()
        engine = server.client(server.url, 5, 0)
        await engine.generate(REQUEST)
        await asyncio.sleep(0.2)
        await engine.generate(REQUEST)
        await engine.close()
        assert len(server.peers) == connections


async def test_tries_end(server: Fake) -> None:
    with pytest.raises(EngineError, match=r"HTTP 500: boom \(3 tries\)"):
        await server.ask(*[boom] * 3)
    assert len(server.bodies) == 3


async def test_what_is_refused_is_not_sent_again(server: Fake) -> None:
    with pytest.raises(RequestRejected, match="HTTP 400: bad regex") as caught:
        await server.ask(says(400, "bad regex"))
    assert type(caught.value) is RequestRejected
    assert len(server.bodies) == 1


async def test_an_overflow_is_the_agents_limit_and_is_not_sent_again(server: Fake) -> None:
    with pytest.raises(ContextOverflow, match="context length") as caught:
        await server.ask(server.overflow)
    assert not isinstance(caught.value, PoolOverflow)
    assert len(server.bodies) == 1


async def test_a_timeout_ends_the_request_on_the_engine_and_is_tried_again(server: Fake) -> None:
    assert (await server.ask(hangs, good(server), seconds=0.3)).attempts == 2
    assert server.dropped == server.rids[:1]


async def test_a_cancelled_call_ends_the_request_on_the_engine(server: Fake) -> None:
    server.replies = [hangs]
    engine = server.client(server.url, 60, 2)
    asking = asyncio.create_task(engine.generate(REQUEST))
    await server.until_asked()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    while not server.dropped:  # noqa: ASYNC110  # the client is still open: it is the call that ends the request
        await asyncio.sleep(0.01)
    assert server.dropped == server.rids
    await engine.close()


async def test_a_connection_that_breaks_while_the_server_is_ready_is_tried_again(server: Fake) -> None:
    assert (await server.ask(breaks, good(server))).attempts == 2
    assert server.asked_ready == 1


@pytest.mark.parametrize("fault", [breaks, boom, says(503, "draining"), says(502, "bad gateway")])
async def test_a_server_that_takes_no_requests_is_down_and_not_waited_for(server: Fake, fault: Reply) -> None:
    server.is_ready = False
    with pytest.raises(EngineDown):
        await server.ask(fault, retries=5)
    assert len(server.bodies) == 1


async def test_a_server_that_hangs_and_takes_no_requests_is_down(server: Fake) -> None:
    server.is_ready = False
    with pytest.raises(EngineDown, match="no answer within"):
        await server.ask(hangs, seconds=0.3)
    assert server.dropped == server.rids


async def test_a_server_that_dies_under_a_generation_is_down(server: Fake) -> None:
    asking = asyncio.create_task(server.ask(hangs))
    await server.until_asked()
    await server.runner.cleanup()
    with pytest.raises(EngineDown):
        await asking


async def test_a_server_that_is_not_there_is_down(server: Fake) -> None:
    await server.runner.cleanup()
    with pytest.raises(EngineDown):
        await server.ask()


async def test_all_who_find_it_down_share_one_question(server: Fake) -> None:
    server.is_ready = False
    server.replies = [breaks] * 20
    engine = server.client(server.url, 5, 2)
    outcomes = await asyncio.gather(*(engine.generate(REQUEST) for _ in range(20)), return_exceptions=True)
    await engine.close()
    assert {type(outcome) for outcome in outcomes} == {EngineDown}
    assert server.asked_ready < 5


@pytest.mark.parametrize("ready", [True, False])
async def test_hanging_up_breaks_off_what_waits_and_nothing_else(server: Fake, ready: bool) -> None:
    server.replies = [hangs, good(server)]
    engine = server.client(server.url, 60, 1)
    asking = asyncio.create_task(engine.generate(REQUEST))
    await server.until_asked()
    server.is_ready = ready
    await engine.hang_up()
    if ready:  # a false alarm: the request is sent again
        assert (await asking).attempts == 2
    else:
        with pytest.raises(EngineDown):
            await asking
    await engine.close()


async def test_a_request_is_pinned_to_its_rank_or_to_none(server: Fake) -> None:
    await server.ask(good(server), request=replace(REQUEST, dp_rank=0))
    await server.ask(good(server))
    assert server.ranks == [0, None]


@pytest.mark.parametrize("ranks", [1, 3])
async def test_a_probe_wakes_every_rank_with_the_workloads_sampling(server: Fake, ranks: int) -> None:
    server.ranks_served, server.replies = ranks, [good(server)] * ranks
    info = await server.probe()
    assert info.dp_ranks == tuple(range(ranks))
    assert len(info.pool_tokens_by_rank) == ranks
    assert info.pool_tokens == min(size for size in info.pool_tokens_by_rank if size is not None)
    assert server.ranks == ([None] if ranks == 1 else list(range(ranks)))
    for body in server.bodies:
        assert body.get("sampling_params", body).items() >= SAMPLING.items()


async def test_a_probe_tells_what_the_engine_refuses(server: Fake) -> None:
    server.replies = [says(400, "temperature must be non-negative")]
    with pytest.raises(RequestRejected, match="temperature"):
        await server.probe()


async def test_a_server_of_another_kind_is_told_in_one_line(server: Fake) -> None:
    engine = server.client(f"{server.url}/other", 5, 0)
    with pytest.raises(EngineError, match=f"is this a {server.server} server") as caught:
        await engine.probe({})
    assert "\n" not in str(caught.value)
    await engine.close()


@pytest.mark.parametrize("value", ["+Inf", "1\xff", "many"])
async def test_metrics_that_make_no_sense_are_an_error_of_the_engine(server: Fake, value: str) -> None:
    server.told = f'sglang:kv_used_tokens {value}\nvllm:num_requests_running{{engine="0"}} {value}\n'
    engine = server.client(server.url, 5, 0)
    with pytest.raises(EngineError):
        await engine.read()
    await engine.close()
