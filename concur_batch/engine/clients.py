"""The client of each kind of server: the one place that knows which class speaks which protocol."""

from __future__ import annotations

from concur_batch.engine.openai import OpenaiEngine
from concur_batch.engine.pools import EngineKind
from concur_batch.engine.sglang import SglangEngine
from concur_batch.engine.vllm import VllmEngine

Client = SglangEngine | VllmEngine | OpenaiEngine


def connect(
    kind: EngineKind, url: str, request_seconds: float, retries: int, api_key: str | None = None, model: str = ""
) -> Client:
    """A client of the server at `url`; see `HttpEngine` for the rest. Must be called on the event loop that uses it.

    `model` is what a server that takes messages is asked for; one that takes token ids has only one.
    """
    match kind:
        case "sglang":
            return SglangEngine(url, request_seconds, retries, api_key)
        case "vllm":
            return VllmEngine(url, request_seconds, retries, api_key)
        case "openai":
            return OpenaiEngine(url, request_seconds, retries, api_key, model)
