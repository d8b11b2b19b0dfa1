"""What the orchestrator relies on, of every engine alike: one suite, run unchanged against our simulation within the
test's process and as a process of its own, and against the real SGLang and the real vLLM on the CPU."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from aiohttp import web
from readings import grown, until

from concur_batch.engine.clients import connect
from concur_batch.engine.pools import EngineKind
from concur_batch.engine.protocol import (
    ContextOverflow,
    EngineDown,
    EngineError,
    EngineInfo,
    Generation,
    GenerationRequest,
    PoolOverflow,
    Reading,
    RequestRejected,
)
from concur_batch.engine.sglang import SglangEngine
from concur_batch.engine.vllm import VllmEngine
from concur_batch.simulator.server import serve
from tests.servers import ServedProcess, free_port, real_server, serving, simulated_config, simulated_server

Client = SglangEngine | VllmEngine
Name = Literal["in-process", "process", "sglang", "vllm"]

GREEDY = {"temperature": 0, "ignore_eos": True}  # every engine then generates to the limit
NAMES = ["in-process", "process", pytest.param("sglang", marks=pytest.mark.sglang), "vllm"]
LONG = 800  # tokens of output that no engine here makes while a test lasts


class InProcess:
    """The simulated server on the test's own event loop, as the run's Ray actor serves it."""

    kind: EngineKind = "sglang"

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        self._runner, _ = await serve(simulated_config(self._port))

    async def kill(self) -> None:
        """As near as a part of this process comes to being killed."""
        await self.stop()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None


@dataclass(frozen=True)
class Engine:
    """One engine under test: `client` tries a request once; `connect` makes others."""

    name: Name
    client: Client
    connect: Callable[[float, int], Client]
    info: EngineInfo
    context_tokens: int
    pool_tokens: int


@pytest.fixture(scope="session", params=NAMES)
def address(request: pytest.FixtureRequest) -> tuple[Name, str | None]:
    """Which engine, and the URL of its process. A session's, so that tests go engine by engine."""
    fixture = {"process": "simulated_process", "sglang": "real_sglang", "vllm": "real_vllm"}.get(request.param)
    return request.param, None if fixture is None else request.getfixturevalue(fixture)


@pytest.fixture(scope="session")
def simulated_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from serving(simulated_server(tmp_path_factory.mktemp("simulated")))


@pytest.fixture
async def engine(address: tuple[Name, str | None]) -> AsyncIterator[Engine]:
    name, url = address
    within = None
    if url is None:
        within = InProcess()
        await within.start()
        url = within.url
    clients: list[Client] = []

    def make(request_seconds: float, retries: int) -> Client:
        clients.append(connect("vllm" if name == "vllm" else "sglang", url, request_seconds, retries))
        return clients[-1]

    client = make(60, 0)
    info = await client.probe({})
    assert info.context_tokens is not None and info.pool_tokens is not None
    yield Engine(name, client, make, info, info.context_tokens, info.pool_tokens)
    for client in clients:
        await client.close()
    if within is not None:
        await within.stop()


def prompt(start: int, tokens: int) -> list[int]:
    """Ids that no prompt of another `start` begins like, within the vocabulary of both models."""
    return [start, *range(1000, 1000 + tokens - 1)]


def request(
    ids: Sequence[int], tokens: int, *, rid: str = "contract-0000", seed: int = 7, **fields: Any
) -> GenerationRequest:
    """`fields` may replace `sampling`."""
    return GenerationRequest(rid, np.array(ids, dtype=np.int32), tokens, seed, fields.pop("sampling", GREEDY), **fields)


def looked_up(before: Reading, after: Reading) -> int:
    """Prompt tokens that the engine looked up in its cache between two readings."""
    names = ("input_tokens_total", "device_hit_tokens_total", "host_hit_tokens_total", "storage_hit_tokens_total")
    return sum(grown(before, after, name) for name in names)


def check_accounts(before: Reading, after: Reading, generations: Sequence[Generation]) -> None:
    """The engine's counters agree with what its requests say of themselves, to the token.

    No tolerance is needed: the engine was idle at both readings, so that every prompt of these requests and of no
    other was looked up between them, and none was preempted (a repeated look-up is counted by no engine).
    """
    hits = sum(generation.cached_device_tokens for generation in generations)
    inputs = sum(generation.input_tokens for generation in generations)
    assert grown(before, after, "device_hit_tokens_total") == hits
    assert looked_up(before, after) == inputs
    assert grown(before, after, "computed_tokens_total") == inputs - hits


@pytest.mark.parametrize("tokens", [1, 7, 16])
async def test_an_output_has_the_length_that_is_forced(engine: Engine, tokens: int) -> None:
    generation = await engine.client.generate(request(prompt(2001, 40), tokens))
    assert (len(generation.output_ids), generation.finish_reason) == (tokens, "length")
    assert (generation.input_tokens, generation.attempts) == (40, 1)
    assert all(isinstance(token, int) for token in generation.output_ids)


async def test_greedy_output_is_equal_on_repeat(engine: Engine) -> None:
    first, again = [await engine.client.generate(request(prompt(2002, 40), 8)) for _ in range(2)]
    assert first.output_ids == again.output_ids


async def test_the_same_seed_samples_the_same(engine: Engine) -> None:
    if engine.name == "sglang":
        pytest.skip("SGLang regards seeds only with --enable-deterministic-inference, which it has not on the CPU")
    sampling = {"temperature": 1.0, "ignore_eos": True}
    asked = [request(prompt(2003, 40), 8, seed=seed, sampling=sampling) for seed in (3, 3, 4)]
    first, again, other = [(await engine.client.generate(each)).output_ids for each in asked]
    assert first == again != other


async def test_log_probabilities_are_one_a_token(engine: Engine) -> None:
    asked = request(prompt(2004, 40), 5, logprobs=True)
    if engine.name in ("in-process", "process"):
        with pytest.raises(RequestRejected, match="does not support `return_logprob`"):
            await engine.client.generate(asked)
        return
    generation = await engine.client.generate(asked)
    assert generation.logprobs is not None and len(generation.logprobs) == len(generation.output_ids) == 5
    assert all(-20 < value <= 0 for value in generation.logprobs)


async def test_a_repeated_prefix_is_cached_to_the_page(engine: Engine) -> None:
    shared = prompt(2005, 200)
    before = await until(engine.client, 0)
    generations = [await engine.client.generate(request([*shared, *range(start, start + 60)], 4)) for start in
                   (3000, 3000, 4000)]  # fmt: skip
    first, same, branch = [generation.cached_device_tokens for generation in generations]
    after = await until(engine.client, 0)
    page = engine.info.page_size
    assert first == 0
    assert 260 - page <= same < 260  # the last token is always computed
    assert 200 - page < branch <= 200
    assert {same % page, branch % page} == {0}
    check_accounts(before, after, generations)


async def test_locked_tokens_rise_in_a_generation_and_fall_to_none(engine: Engine) -> None:
    before = await until(engine.client, 0)
    asking = asyncio.create_task(engine.client.generate(request(prompt(2006, 300), 64)))
    during = await until(engine.client, 1)
    assert during.locked_tokens is not None
    assert 300 <= during.locked_tokens <= 364 + engine.info.page_size
    generation = await asking
    after = await until(engine.client, 0)
    assert after.pool_tokens == before.pool_tokens == engine.pool_tokens
    check_accounts(before, after, [generation])


@pytest.mark.parametrize("ending", ["cancelled", "hung up", "timed out"])
async def test_a_request_that_nobody_waits_for_leaves_the_engine(engine: Engine, ending: str) -> None:
    client = engine.connect(2.0 if ending == "timed out" else 60, 0)
    before = await until(engine.client, 0)
    asking = asyncio.create_task(client.generate(request(prompt(2007, 100), LONG)))
    await until(engine.client, 1)
    if ending == "cancelled":
        asking.cancel()
    elif ending == "hung up":
        await client.hang_up()
    with pytest.raises(asyncio.CancelledError if ending == "cancelled" else EngineError) as caught:
        await asking
    assert not isinstance(caught.value, EngineDown)
    after = await until(engine.client, 0)
    assert grown(before, after, "decoded_tokens_total") < LONG


async def test_a_cancelled_request_takes_no_other_with_it(engine: Engine) -> None:
    """Engines abort by the beginning of a rid: those of one agent, and of agents numbered alike, begin alike."""
    rids = ["contract-0000", "contract-0001", "contract-0001"]
    asked = [request(prompt(2100 + number, 40), LONG if number == 0 else 48, rid=rid)
             for number, rid in enumerate(rids)]  # fmt: skip
    first, *others = [asyncio.create_task(engine.client.generate(each)) for each in asked]
    await until(engine.client, 3)
    first.cancel()
    assert [len(generation.output_ids) for generation in await asyncio.gather(*others)] == [48, 48]
    assert first.cancelled()
    await until(engine.client, 0)


async def test_a_timeout_is_tried_again_and_leaves_nothing_running(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("concur_batch.engine.http.random.uniform", lambda low, high: 0.0)
    client = engine.connect(1.0, 1)
    with pytest.raises(EngineError, match=r"no answer within 1 s \(2 tries\)") as caught:
        await client.generate(request(prompt(2008, 40), LONG))
    assert type(caught.value) is EngineError
    await until(engine.client, 0)


@pytest.mark.parametrize("beyond", [0, 1, 500])
async def test_a_prompt_over_the_context_is_an_overflow(engine: Engine, beyond: int) -> None:
    with pytest.raises(ContextOverflow) as caught:
        await engine.client.generate(request([5] * (engine.context_tokens + beyond), 1))
    assert type(caught.value) is ContextOverflow


async def test_a_prompt_over_the_pool_is_told_apart(engine: Engine) -> None:
    """vLLM has no pool that does not hold a full context: such a prompt is over the context there."""
    kind = PoolOverflow if engine.pool_tokens < engine.context_tokens else ContextOverflow
    with pytest.raises(ContextOverflow) as caught:
        await engine.client.generate(request([5] * (engine.pool_tokens + 1), 1))
    assert type(caught.value) is kind
    assert (engine.name == "vllm") == (kind is ContextOverflow)


async def test_what_can_never_go_well_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestRejected, match=r"max_(new_)?tokens") as caught:
        await engine.connect(60, 5).generate(request(prompt(2009, 40), -1))
    assert type(caught.value) is RequestRejected


async def test_64_at_once_are_all_answered_and_all_accounted_for(engine: Engine) -> None:
    before = await until(engine.client, 0)
    lengths = [1 + number % 8 for number in range(64)]
    # A shared beginning and an end of its own; the prompts together are more than SGLang's pool.
    asked = [request([*prompt(2010, 32), *[3000 + number] * 24], tokens, rid=f"contract-{number:04}")
             for number, tokens in enumerate(lengths)]  # fmt: skip
    generations = await asyncio.gather(*map(engine.client.generate, asked))
    after = await until(engine.client, 0)
    assert [len(generation.output_ids) for generation in generations] == lengths
    assert {generation.input_tokens for generation in generations} == {56}
    assert sum(generation.cached_device_tokens for generation in generations) > 0
    assert sum(generation.retractions or 0 for generation in generations) == 0
    check_accounts(before, after, generations)


@pytest.fixture(params=NAMES)
async def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[InProcess | ServedProcess]:
    """A server of the test's own."""
    server: InProcess | ServedProcess
    match request.param:
        case "in-process":
            server = InProcess()
        case "process":
            server = simulated_server(tmp_path)
        case kind:
            server = real_server(kind, tmp_path)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@pytest.mark.timeout(600)
async def test_a_client_outlives_its_server(mortal: InProcess | ServedProcess) -> None:
    client = connect(mortal.kind, mortal.url, 60, 2)
    asked = request(prompt(2011, 40), 4)
    first = await client.generate(asked)
    asking = asyncio.create_task(client.generate(request(prompt(2012, 40), LONG)))
    await until(client, 1)
    await mortal.kill()
    with pytest.raises(EngineDown):
        await asking
    with pytest.raises(EngineDown):
        await client.generate(asked)
    assert not await client.ready()
    await mortal.stop()  # what it started may hold its port or its memory
    await mortal.start()
    again = await client.generate(asked)
    assert (again.output_ids, again.cached_device_tokens) == (first.output_ids, 0)
    after = await until(client, 0)
    assert looked_up(Reading(0.0), after) == 40  # its counters began anew
    await client.close()
