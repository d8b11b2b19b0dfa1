"""Streams over real HTTP: tokens when the engine has made them, and what ends a stream before its time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import aiohttp
import numpy as np
import pytest
from simulated_server import ENGINE, MODEL, SLOW, TOKENIZER, served

from concur_batch.simulator.ask import Ask, Sampling
from concur_batch.simulator.chat import ChatScript
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.server_config import ServerConfig
from concur_batch.simulator.service import Progress, Service

FORCED = {"max_new_tokens": 3_000, "ignore_eos": True}
STEP_SECONDS = 0.02  # simulated


async def streamed(service: Service, tokens: int, start: int = 5) -> list[tuple[float, Progress]]:
    """What a generation tells, with the engine's time at which it is told."""
    ask = Ask(np.array([start, 6, 7], dtype=np.int32), Sampling(tokens, ignore_eos=True), stream=True)
    told = []
    with service.generation(ask) as generation:
        async for progress in generation.progress():
            told.append((service.drivers[0].now_seconds(), progress))
    return told


@pytest.mark.parametrize("time_scale", [1.0, 1000.0])
async def test_no_token_comes_before_the_engine_has_made_it_and_all_come(time_scale: float) -> None:
    cost = CostModel(0.0, 0.0, STEP_SECONDS, 0.0, 0.0)
    service = Service(ServerConfig(engine=ENGINE, cost=cost, tokenizer=MODEL, chat=ChatScript(), time_scale=time_scale))
    for told in await asyncio.gather(*(streamed(service, tokens, tokens) for tokens in (12, 20))):
        (_, end), counts = told[-1], [progress.tokens for _, progress in told]
        assert end.completion is not None and end.completion.completion_tokens == counts[-1]
        assert all(before < after or after == counts[-1] for before, after in pairwise(counts))
        first = end.completion.first_token_seconds
        assert first is not None
        for seconds, progress in told:
            # One decode step a token after the first, whatever else is in the batch.
            assert seconds >= first + (progress.tokens - 1) * STEP_SECONDS - 1e-9
            assert progress.text == TOKENIZER.decode(end.completion.output_ids[: progress.tokens].tolist())
    service.close()


async def test_a_slow_engine_is_heard_token_by_token() -> None:
    """Ten steps of 100 ms: some are told one by one, however busy this machine is."""
    service = Service(ServerConfig(engine=ENGINE, cost=SLOW, tokenizer=MODEL, chat=ChatScript()))
    counts = [progress.tokens for _, progress in await streamed(service, 10)]
    assert counts[-1] == 10 and len(set(counts)) > 2
    service.close()


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    """The events of a stream, as far as it goes; the last is `[DONE]`."""
    assert response.content_type == "text/event-stream"
    async for line in response.content:
        if line.strip():
            head, _, data = line.decode().partition("data: ")
            assert not head
            yield data.strip() if data.strip() == "[DONE]" else json.loads(data)


@asynccontextmanager
async def generating(session: aiohttp.ClientSession, url: str, **body: Any) -> AsyncIterator[AsyncIterator[Any]]:
    body = {"input_ids": [5, 6, 7], "sampling_params": FORCED, "stream": True, **body}
    async with session.post(f"{url}/generate", json=body) as response:
        assert response.status == 200
        yield events(response)


async def metric(session: aiohttp.ClientSession, url: str, name: str) -> float:
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"sglang:{name}{{"))


async def test_a_stream_tells_the_whole_so_far_and_at_its_end_why() -> None:
    async with served() as url, aiohttp.ClientSession() as session:
        async with generating(session, url, sampling_params={"max_new_tokens": 200}, rid="s|") as stream:
            *chunks, done = [event async for event in stream]
        last = chunks[-1]
        assert done == "[DONE]"
        assert all(chunk["meta_info"]["finish_reason"] is None for chunk in chunks[:-1])
        assert last["meta_info"]["finish_reason"] == {"type": "stop", "matched": TOKENIZER.token_to_id("<|im_end|>")}
        assert last["meta_info"]["completion_tokens"] == len(last["output_ids"]) > 4
        assert last["meta_info"]["id"] == "s|" and last["meta_info"]["e2e_latency"] >= 0
        assert last["text"] == TOKENIZER.decode(last["output_ids"])
        async with session.get(f"{url}/metrics") as response:
            text = await response.text()
        assert 'num_requests_total{engine_type="unified",model_name="simulated",is_streaming="True"} 1' in text


async def test_an_abort_ends_a_stream_with_what_there_is() -> None:
    async with served(SLOW) as url, aiohttp.ClientSession() as session:
        async with generating(session, url, rid="a-1|") as stream:
            first = await anext(stream)
            assert first["meta_info"]["completion_tokens"] == len(first["output_ids"]) >= 1
            async with session.post(f"{url}/abort_request", json={"rid": "a-"}) as response:
                assert response.status == 200
            *_, last, done = [event async for event in stream]
        assert last["meta_info"]["finish_reason"]["type"] == "abort" and done == "[DONE]"
        assert first["output_ids"] == last["output_ids"][: len(first["output_ids"])]
        assert len(last["output_ids"]) < 100
        assert await metric(session, url, "kv_used_tokens") == 0


async def test_a_client_that_goes_away_in_the_middle_aborts_its_request() -> None:
    async with served(SLOW) as url, aiohttp.ClientSession() as session:
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/generate", {"input_ids": [5, 6], "sampling_params": FORCED}),
            ("/v1/completions", {"prompt": "a", "max_tokens": 3_000, "ignore_eos": True}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "ignore_eos": True}),
        ]
        for path, body in bodies:
            async with session.post(url + path, json={**body, "stream": True, "rid": "same|"}) as response:
                await anext(events(response))
                assert await metric(session, url, "num_running_reqs") == 1
                response.close()
            while await metric(session, url, "num_running_reqs"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await metric(session, url, "kv_used_tokens") == 0


async def test_an_error_of_a_stream_is_an_event_in_sglangs_route_and_an_answer_in_openais() -> None:
    async with served() as url, aiohttp.ClientSession() as session:
        async with generating(session, url, input_ids=[5] * 4_000) as stream:
            error, done = [event async for event in stream]
        assert error["error"]["message"].startswith("The input (4000 tokens) is longer than the model's context")
        assert (error["error"]["code"], done) == (400, "[DONE]")
        body = {"prompt": [5] * 4_000, "stream": True}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            answer = await response.json()
            assert (response.status, answer["object"], answer["code"]) == (400, "error", 400)
            assert answer["message"] == error["error"]["message"]


async def test_many_streams_at_once() -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        served(CostModel(decode_step_seconds=0.02)) as url,
        aiohttp.ClientSession(connector=connector) as session,
    ):

        async def one(start: int) -> Any:
            sampling = {"max_new_tokens": 30, "ignore_eos": True}
            async with generating(session, url, input_ids=[start, 6, 7], sampling_params=sampling) as stream:
                *_, last, done = [event async for event in stream]
            return last["output_ids"] if done == "[DONE]" else None

        outputs = await asyncio.gather(*(one(start) for start in range(100, 250)))
        assert all(len(output) == 30 for output in outputs)
