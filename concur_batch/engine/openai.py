"""Client of any server with OpenAI's chat completions: messages in, one message out, over `/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from concur_batch.engine.http import HttpEngine, error_text, failure, missing_signals, parse_answer
from concur_batch.engine.protocol import (
    Chat,
    EngineError,
    EngineInfo,
    FinishReason,
    Generation,
    GenerationRequest,
    Reading,
    RequestRejected,
)

# What servers say of a prompt that does not fit: OpenAI's code; OpenAI, vLLM and SGLang in words; SGLang of a prompt
# that fits no pool; vLLM of one that leaves no room for an output; llama.cpp.
_OVERFLOW = (
    *("context_length_exceeded", "maximum context length", "longer than the model's context length"),
    *("exceeds the maximum allowed length", "KV memory budget", "tokens must be at least 1, got 0"),
    "exceeds the available context size",
)
_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "length": "length",
}


class OpenaiEngine(HttpEngine):
    """One server, asked for the model of the name `model`. It tells what its answers tell, and no signals.

    `url` may end in `/v1`, as such a server's base URL is usually given. A request that must stop has its connection
    closed: the protocol has no other abort.
    """

    server = "chat completions"
    health_paths = ("/v1/models",)

    def __init__(self, url: str, request_seconds: float, retries: int, api_key: str | None, model: str) -> None:
        super().__init__(url.rstrip("/").removesuffix("/v1"), request_seconds, retries, api_key)
        self.model = model
        # The name of an output's bound. Every server honours this one, but for OpenAI's newer models, which refuse it
        # and name `max_completion_tokens`. That one is ignored by llama.cpp before 2026 and others, which would then
        # generate without end. To be sent both is refused by OpenAI.
        self._length = "max_tokens"

    async def models(self) -> dict[str, Mapping[str, Any]]:
        """What is served, by name. Raises EngineError."""
        listed = (await self._get_json("/v1/models")).get("data")
        try:
            return {str(model["id"]): model for model in listed or ()}
        except (KeyError, TypeError):
            raise EngineError(f"{self._url}/v1/models is not as OpenAI's") from None

    async def probe(self, sampling: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None = None) -> EngineInfo:
        """See that it serves the model, and generate one token with the workload's sampling parameters and the tools
        that it is to offer, so that what it refuses is known before any agent starts. Raises EngineError."""
        served = await self.models()
        if self.model not in served:
            raise EngineError(f"{self._url} serves no {self.model!r}, but {', '.join(served) or 'nothing'}: "
                              "mend model.name")  # fmt: skip
        chat = Chat([{"role": "user", "content": "Hello."}], tools)
        empty = np.empty(0, dtype=np.int32)
        first = await self.generate(GenerationRequest("probe", empty, 1, 0, sampling, chat=chat))
        missing = missing_signals([Reading(at_seconds=0.0)])
        return EngineInfo(
            version=None,
            pool_tokens=None,
            page_size=1,
            context_tokens=_whole(served[self.model].get("max_model_len")),
            missing_signals=missing + (("cached tokens",) if first.cached_device_tokens is None else ()),
        )

    async def read(self) -> dict[int, Reading]:
        """Nothing but that it is there; raises EngineError where it is not."""
        at_seconds = time.monotonic()
        await self._get_json("/v1/models")
        return {0: Reading(at_seconds)}

    async def _try(self, rid: str, request: GenerationRequest, tries: int) -> Generation:
        """`seed` and what `sampling` holds go as they are, `top_k` only where it is on: OpenAI refuses what it does not
        know."""
        if request.chat is None:
            raise RequestRejected("this engine takes messages, not token ids")
        fields: dict[str, Any] = {
            **{name: value for name, value in request.sampling.items() if (name, value) != ("top_k", -1)},
            "model": self.model,
            "messages": request.chat.messages,
            "seed": request.seed,
        }
        if request.chat.tools:
            fields["tools"] = request.chat.tools
        if request.logprobs:
            fields["logprobs"] = True
        status, text = await self._complete(fields, request.max_new_tokens)
        if status != 200:
            raise failure(status, error_text(text), _OVERFLOW)
        answer = parse_answer(text)
        try:
            return _generation(answer, tries)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(f"the answer is no chat completion with its usage: {error!r}") from None

    async def _complete(self, fields: Mapping[str, Any], max_new_tokens: int) -> tuple[int, bytes]:
        """Status and body; the other name of the output's bound is taken for good once this one is refused for it."""
        path, length = "/v1/chat/completions", self._length
        status, text = await self._post(path, {**fields, length: max_new_tokens}, {})
        if status == 400 and length == "max_tokens" and "'max_completion_tokens'" in error_text(text):
            self._length = "max_completion_tokens"
            status, text = await self._post(path, {**fields, self._length: max_new_tokens}, {})
        return status, text


def _generation(answer: Mapping[str, Any], tries: int) -> Generation:
    choice, usage = answer["choices"][0], answer["usage"]
    reason = choice["finish_reason"]
    if reason not in _REASONS:
        # A filter would say the same again; anything else (abort, error) may go well the next time.
        raise (RequestRejected if reason == "content_filter" else EngineError)(f"the server ended it by {reason!r}")
    logprobs = (choice.get("logprobs") or {}).get("content")
    return Generation(
        output_ids=[],
        finish_reason=_REASONS[reason],
        input_tokens=int(usage["prompt_tokens"]),
        cached_device_tokens=_whole((usage.get("prompt_tokens_details") or {}).get("cached_tokens")),
        logprobs=[float(token["logprob"]) for token in logprobs] if logprobs else None,
        attempts=tries,
        message=dict(choice["message"]),
        told_output_tokens=int(usage["completion_tokens"]),
    )


def _whole(number: Any) -> int | None:
    return None if number is None else int(number)
