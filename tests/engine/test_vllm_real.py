"""What vLLM's client alone relies on, of a real vLLM on the CPU; see test_contract.py for what all engines do alike."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
from readings import grown, until
from tokenizers import Tokenizer

from concur_batch.engine.openai import OpenaiEngine
from concur_batch.engine.protocol import (
    Chat,
    ContextOverflow,
    EngineError,
    GenerationRequest,
    RequestRejected,
)
from concur_batch.engine.vllm import VllmEngine
from tests.servers import ROOT

FORCED = {"temperature": 0, "ignore_eos": True}
PROMPT = np.arange(1000, 1064, dtype=np.int32)


@pytest.fixture
async def engine(real_vllm: str) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(real_vllm, 60, 0)
    yield engine
    await engine.close()


async def test_what_a_probe_finds(engine: VllmEngine) -> None:
    info = await engine.probe({"temperature": 0.7, "top_p": 0.9, "top_k": 20, "stop": ["\n"]})
    assert (info.version, info.pool_tokens, info.page_size, info.context_tokens) == ("0.32.0", 479 * 32, 32, 4096)
    assert (info.dp_ranks, info.missing_signals) == ((0,), ("occupancy",))


async def test_the_times_of_a_request_are_told(engine: VllmEngine) -> None:
    generation = await engine.generate(GenerationRequest("times", PROMPT, 4, 7, FORCED))
    assert None not in (generation.queue_seconds, generation.prefill_seconds, generation.decode_seconds)


async def test_a_stop_string_ends_an_output_whose_ids_hold_it(engine: VllmEngine) -> None:
    free = await engine.generate(GenerationRequest("free", PROMPT, 8, 7, FORCED | {"min_tokens": 8}))
    tokenizer = Tokenizer.from_file(str(ROOT / "models/smollm2-135m/tokenizer.json"))
    sampling = FORCED | {"stop": [tokenizer.decode(free.output_ids[:3])]}
    stopped = await engine.generate(GenerationRequest("stop", PROMPT, 8, 7, sampling))
    assert (stopped.output_ids, stopped.finish_reason) == (free.output_ids[:3], "stop")


async def test_what_the_engine_refuses(engine: VllmEngine) -> None:
    with pytest.raises(RequestRejected, match="temperature must be non-negative") as caught:
        await engine.generate(GenerationRequest("bad", PROMPT, 1, 0, {"temperature": -1}))
    assert not isinstance(caught.value, ContextOverflow)


@pytest.fixture
async def chat(real_vllm: str) -> AsyncIterator[OpenaiEngine]:
    chat = OpenaiEngine(f"{real_vllm}/v1", 60, 0, None, "smollm2")
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
