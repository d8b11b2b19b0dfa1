"""What vLLM's client alone does, of answers as a real one gave them; see test_http_client.py for what all do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fake_servers import REQUEST, SAMPLING, VLLM_ANSWER, VLLM_ERRORS, FakeVllm, Reply, answers

from concur_batch.engine.protocol import ContextOverflow, PoolOverflow, RequestRejected
from concur_batch.engine.vllm import VllmEngine

good = answers(VLLM_ANSWER)


def with_choice(**fields: Any) -> Reply:
    return answers(VLLM_ANSWER | {"choices": [VLLM_ANSWER["choices"][0] | fields]})


def without(key: str) -> Reply:
    return answers({name: value for name, value in VLLM_ANSWER.items() if name != key})


async def test_an_answer(vllm: FakeVllm) -> None:
    generation = await vllm.ask(good, request=replace(REQUEST, logprobs=True))
    assert (generation.output_ids, generation.finish_reason) == ([99, 216, 33, 33, 33, 33], "length")
    assert (generation.input_tokens, generation.cached_device_tokens, generation.attempts) == (300, 288, 1)
    assert generation.logprobs is not None
    assert [round(value) for value in generation.logprobs] == [-3, -3, -2, -3, -2, -1]
    assert generation.queue_seconds == pytest.approx(0.0000202, abs=1e-7)
    assert generation.prefill_seconds == pytest.approx(0.0432, abs=1e-4)
    assert generation.decode_seconds == pytest.approx(0.1598, abs=1e-4)


async def test_what_is_sent(vllm: FakeVllm) -> None:
    await vllm.ask(good)
    (body,) = vllm.bodies
    assert body.pop("request_id").startswith(REQUEST.rid)
    assert body == {
        **SAMPLING, "prompt": list(range(100, 400)), "max_tokens": 6, "seed": 1, "return_token_ids": True,
    }  # fmt: skip


@pytest.mark.parametrize(("reason", "told"), [("stop", "stop"), ("length", "length"), ("repetition", "stop")])
async def test_how_it_ended(vllm: FakeVllm, reason: str, told: str) -> None:
    generation = await vllm.ask(with_choice(finish_reason=reason, logprobs=None))
    assert (generation.finish_reason, generation.logprobs) == (told, None)


async def test_a_server_that_tells_no_times(vllm: FakeVllm) -> None:
    generation = await vllm.ask(without("metrics"))
    assert (generation.queue_seconds, generation.prefill_seconds, generation.decode_seconds) == (None, None, None)


@pytest.mark.parametrize(
    "fault",
    [without("usage"), answers(VLLM_ANSWER | {"choices": []}), with_choice(token_ids=None),
     with_choice(finish_reason="abort")],
)  # fmt: skip
async def test_an_answer_with_a_part_missing_is_tried_again(vllm: FakeVllm, fault: Reply) -> None:
    assert (await vllm.ask(fault, good)).attempts == 2


@pytest.mark.parametrize("name", ["context", "context_full"])
async def test_an_overflow_in_its_own_words(vllm: FakeVllm, name: str) -> None:
    with pytest.raises(ContextOverflow) as caught:
        await vllm.ask(answers(VLLM_ERRORS[name], 400))
    assert str(caught.value) == VLLM_ERRORS[name]["error"]["message"]
    assert not isinstance(caught.value, PoolOverflow)


@pytest.mark.parametrize("name", ["temperature", "rank"])
async def test_a_refusal_in_its_own_words(vllm: FakeVllm, name: str) -> None:
    with pytest.raises(RequestRejected) as caught:
        await vllm.ask(answers(VLLM_ERRORS[name], 400))
    assert str(caught.value) == f"HTTP 400: {VLLM_ERRORS[name]['error']['message']}"
    assert type(caught.value) is RequestRejected


@pytest.mark.parametrize("ranks", [1, 3])
async def test_what_a_probe_finds(vllm: FakeVllm, ranks: int) -> None:
    vllm.ranks_served, vllm.replies = ranks, [good] * ranks
    info = await vllm.probe()
    assert (info.version, info.context_tokens, info.page_size) == ("0.32.0", 4096, 32)
    assert (info.pool_tokens_by_rank, info.missing_signals) == ((15328,) * ranks, ("occupancy",))


async def test_a_server_that_tells_no_cached_tokens_is_found_out_by_the_probe(vllm: FakeVllm) -> None:
    vllm.replies = [answers(VLLM_ANSWER | {"usage": VLLM_ANSWER["usage"] | {"prompt_tokens_details": None}})]
    engine = VllmEngine(vllm.url, 5, 0)
    assert engine.tells_cached_tokens
    info = await engine.probe({})
    await engine.close()
    assert info.missing_signals == ("occupancy", "cached tokens")
    assert not engine.tells_cached_tokens
