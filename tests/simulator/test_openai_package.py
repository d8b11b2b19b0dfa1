"""The stock `openai` package against the simulated server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from simulated_server import SLOW, TOKENIZER, served

USER: Any = [{"role": "user", "content": "What now?"}]
LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]},
    },
}


@asynccontextmanager
async def client(*args: Any, **fields: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served(*args, **fields) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
            yield made


async def test_a_chat_and_its_usage() -> None:
    async with client() as api:
        first, second = [await api.chat.completions.create(model="m", messages=USER) for _ in range(2)]
        (choice,) = first.choices
        assert choice.finish_reason == "stop" and choice.message.role == "assistant"
        assert choice.message.content is not None and choice.message.content.startswith("This answer is simulated:")
        assert first.model == "m" and first.id != second.id
        assert first.usage is not None and second.usage is not None
        prompt = "<|im_start|>user\nWhat now?<|im_end|>\n<|im_start|>assistant\n"
        assert first.usage.prompt_tokens == len(TOKENIZER.encode(prompt).ids)
        assert first.usage.total_tokens == first.usage.prompt_tokens + first.usage.completion_tokens
        cached = [usage.prompt_tokens_details for usage in (first.usage, second.usage)]
        assert [details and details.cached_tokens for details in cached] == [0, first.usage.prompt_tokens - 1]


async def test_a_streamed_chat_says_the_same() -> None:
    async with client() as api:
        whole = await api.chat.completions.create(model="m", messages=USER, seed=4)
        stream = await api.chat.completions.create(
            model="m", messages=USER, seed=4, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        *said, end = [chunk.choices[0] for chunk in chunks if chunk.choices]
        assert said[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in said) == whole.choices[0].message.content
        assert [choice.finish_reason for choice in said] == [None] * len(said) and end.finish_reason == "stop"
        assert len({chunk.id for chunk in chunks}) == 1
        usages = [chunk.usage for chunk in chunks if chunk.usage]
        assert whole.usage is not None and chunks[-1].choices == []
        assert [usage.completion_tokens for usage in usages] == [whole.usage.completion_tokens]


async def test_completions_limits_and_stops() -> None:
    async with client() as api:
        cut = await api.completions.create(model="m", prompt="Once", max_tokens=3)
        assert (cut.choices[0].finish_reason, cut.usage and cut.usage.completion_tokens) == ("length", 3)
        stream = await api.completions.create(model="m", prompt="Once", max_tokens=3, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == cut.choices[0].text
        stopped = await api.completions.create(model="m", prompt="Once", max_tokens=30, stop=[" simulated"])
        assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("This answer is", "stop")
        stream = await api.completions.create(model="m", prompt="Once", max_tokens=30, stop=[" simulated"], stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "This answer is"


async def test_a_loop_over_tool_calls_comes_to_its_end() -> None:
    async with client() as api:
        messages = list(USER)
        answer = (await api.chat.completions.create(model="m", messages=messages, tools=[LOOK])).choices[0]
        assert answer.finish_reason == "tool_calls" and answer.message.tool_calls is not None
        (call,) = answer.message.tool_calls
        assert call.type == "function" and call.function.name == "look"
        assert json.loads(call.function.arguments) == {"where": "simulated"}
        told = {"role": "tool", "tool_call_id": call.id, "content": "a wall"}
        messages += [answer.message.model_dump(exclude_none=True), told]
        last = (await api.chat.completions.create(model="m", messages=messages, tools=[LOOK])).choices[0]
        assert (last.finish_reason, last.message.tool_calls) == ("stop", None)
        assert last.message.content
        refused = await api.chat.completions.create(model="m", messages=USER, tools=[LOOK], tool_choice="none")
        assert refused.choices[0].message.tool_calls is None


async def test_the_packages_own_stream_helper_puts_a_call_together() -> None:
    async with client() as api:
        async with api.chat.completions.stream(model="m", messages=USER, tools=[LOOK]) as stream:
            async for _ in stream:
                pass
            (choice,) = (await stream.get_final_completion()).choices
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
        assert [call.function.name for call in choice.message.tool_calls] == ["look"]


async def test_a_scripted_agent_is_driven_by_tool_messages(tmp_path: Path) -> None:
    calls = [{"name": "look", "arguments": {"where": side}} for side in ("left", "right")]
    steps = [{"think": "I look.", "calls": calls}, {"think": "Seen: {{ obs | join(', ') }}", "calls": []}]
    (tmp_path / "scripts.jsonl").write_text(json.dumps({"id": "t1", "variants": [steps]}))
    async with client(scripts=tmp_path / "scripts.jsonl") as api:
        messages: Any = [{"role": "user", "content": "Task t1"}]
        answer = (await api.chat.completions.create(model="m", messages=messages, tools=[LOOK])).choices[0]
        assert answer.message.content == "I look." and answer.message.tool_calls is not None
        sides = [json.loads(call.function.arguments)["where"] for call in answer.message.tool_calls]  # type: ignore[union-attr]
        assert sides == ["left", "right"]
        stream = await api.chat.completions.create(model="m", messages=messages, tools=[LOOK], stream=True)
        deltas = [chunk.choices[0].delta async for chunk in stream]
        assert "".join(delta.content or "" for delta in deltas).strip() == "I look."
        assert [call.index for delta in deltas for call in delta.tool_calls or ()] == [0, 1]
        messages.append(answer.message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": f"{side} wall"}
            for call, side in zip(answer.message.tool_calls, sides, strict=True)
        ]
        last = (await api.chat.completions.create(model="m", messages=messages, tools=[LOOK])).choices[0]
        assert last.message.content == "Seen: left wall, right wall"


async def test_refusals_become_the_packages_exceptions() -> None:
    async with client() as api:
        with pytest.raises(openai.BadRequestError, match="longer than the model's context length"):
            await api.completions.create(model="m", prompt=[5] * 4_000)
        with pytest.raises(openai.BadRequestError, match="maximum context length of 4000 tokens"):
            await api.chat.completions.create(model="m", messages=USER, max_tokens=3_999)
        with pytest.raises(openai.BadRequestError, match="does not support `n` above 1"):
            await api.chat.completions.create(model="m", messages=USER, n=2, stream=True)
        with pytest.raises(openai.BadRequestError, match="does not support `logprobs`"):
            await api.completions.create(model="m", prompt="a", logprobs=1)
        with pytest.raises(openai.BadRequestError, match="Messages cannot be empty"):
            await api.chat.completions.create(model="m", messages=[])
        with pytest.raises(openai.BadRequestError, match="out of range"):
            await api.completions.create(model="m", prompt="a", extra_headers={"X-Data-Parallel-Rank": "3"})
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await api.models.retrieve("other")
        assert (await api.models.retrieve("simulated")).owned_by == "simulated"
        assert [model.id async for model in await api.models.list()] == ["simulated"]
        await api.completions.create(model="m", prompt="a")  # and it goes on serving


async def test_a_stream_that_is_aborted_says_so() -> None:
    async with client(SLOW) as api:
        stream = await api.chat.completions.create(
            model="m", messages=USER, stream=True, extra_body={"ignore_eos": True, "rid": "a|"}
        )
        reasons = []
        async for chunk in stream:
            reasons.append(chunk.choices[0].finish_reason)
            if len(reasons) == 1:
                await api.post("/../abort_request", cast_to=object, body={"rid": "a|"})
        assert reasons[-1] == "abort"


async def test_concurrent_chats_share_the_engine() -> None:
    async with client() as api:
        answers = await asyncio.gather(
            *(api.chat.completions.create(model="m", messages=USER, seed=seed) for seed in range(20))
        )
        assert len({answer.choices[0].message.content for answer in answers}) > 15
