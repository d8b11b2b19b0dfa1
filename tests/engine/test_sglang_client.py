"""What SGLang's client alone does; see test_http_client.py for what all do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_servers import REQUEST, SAMPLING, SGLANG_ANSWER, FakeSglang, answers, says

from concur_batch.engine.protocol import ContextOverflow, PoolOverflow
from concur_batch.engine.sglang import SglangEngine


async def test_an_answer_and_what_was_sent(sglang: FakeSglang) -> None:
    generation = await sglang.ask(answers(SGLANG_ANSWER))
    assert (generation.output_ids, generation.input_tokens, generation.cached_device_tokens) == ([7, 8], 3, 2)
    (body,) = sglang.bodies
    assert body.pop("rid").startswith(REQUEST.rid)
    assert body == {
        "input_ids": list(range(100, 400)),
        "sampling_params": {**SAMPLING, "max_new_tokens": 6, "sampling_seed": 1},
        "return_logprob": False,
    }


KV_BUDGET = "Request prompt exceeds the KV memory budget: input_len=3."
INPUT_LIMIT = "Input length (9000 tokens) exceeds the maximum allowed length ({} tokens). Use a shorter input."


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("The input (9 tokens) is longer than the model's context length (8 tokens).", ContextOverflow),
        ("Requested token count exceeds the model's maximum context length of 8 tokens.", ContextOverflow),
        (INPUT_LIMIT.format(8186), ContextOverflow),  # the context of 8192, less what is kept for the output
        (INPUT_LIMIT.format(8185), PoolOverflow),
        (KV_BUDGET, PoolOverflow),
    ],
)
async def test_an_overflow_is_told_apart(sglang: FakeSglang, message: str, kind: type[Exception]) -> None:
    reason = {"type": "abort", "message": message, "status_code": 400}
    aborted = answers({"output_ids": [], "meta_info": {"finish_reason": reason, "prompt_tokens": 3}})
    for reply in (says(400, message), aborted):
        with pytest.raises(ContextOverflow, match=r"length|budget") as caught:
            await sglang.ask(reply)
        assert type(caught.value) is kind
    assert len(sglang.bodies) == 2  # neither was sent again


@pytest.mark.parametrize("healthy", [True, False])
async def test_a_server_without_ready_is_asked_for_its_health(sglang: FakeSglang, healthy: bool) -> None:
    sglang.knows_ready, sglang.is_ready = False, healthy
    client = SglangEngine(sglang.url, 5, 0)
    assert await client.ready() is healthy
    await client.close()


async def test_priority_and_session_are_sent_where_they_are_given(sglang: FakeSglang) -> None:
    await sglang.ask(answers(SGLANG_ANSWER), request=replace(REQUEST, priority=-3, session="a-00"))
    await sglang.ask(answers(SGLANG_ANSWER), request=replace(REQUEST, priority=0))
    told = [{name: body[name] for name in ("priority", "session_id") if name in body} for body in sglang.bodies]
    assert told == [{"priority": -3, "session_id": "a-00"}, {"priority": 0}]


async def test_a_session_is_closed_once_where_it_was_sent(sglang: FakeSglang) -> None:
    sglang.replies = [answers(SGLANG_ANSWER)] * 2
    client, other = SglangEngine(sglang.url, 5, 0), SglangEngine(sglang.url, 5, 0)
    for session in ("a-00", "b-00"):
        await client.generate(replace(REQUEST, session=session))
    for engine in (client, other, client):
        await engine.end_session("a-00")
    assert sglang.closed == ["a-00"]
    await sglang.runner.cleanup()
    await client.end_session("b-00")  # a server that is gone keeps none
    await client.close()
    await other.close()


@pytest.mark.parametrize(
    ("ranks", "attention", "pools"), [(1, False, (100,)), (3, False, (100, 99, 98)), (3, True, (100, 99, 98))]
)
async def test_what_a_probe_finds(sglang: FakeSglang, ranks: int, attention: bool, pools: tuple[int, ...]) -> None:
    sglang.ranks_served, sglang.attention_ranks = ranks, attention
    sglang.replies = [answers(SGLANG_ANSWER)] * ranks
    info = await sglang.probe()
    assert (info.pool_tokens_by_rank, info.pool_tokens) == (pools, min(pools))
    assert (info.version, info.context_tokens, info.page_size) == ("0.5.23", 8192, 16)
    assert info.missing_signals == ("hit rate",)
