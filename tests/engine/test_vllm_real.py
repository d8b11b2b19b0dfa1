"""What vLLM's client alone relies on, of a real vLLM on the CPU; see test_contract.py for what all engines do alike."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
from tokenizers import Tokenizer

from concur_batch.engine.protocol import ContextOverflow, GenerationRequest, RequestRejected
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
