"""The client of each kind of server: the one place that knows which class speaks which protocol."""

from __future__ import annotations

from concur_batch.engine.pools import EngineKind
from concur_batch.engine.sglang import SglangEngine
from concur_batch.engine.vllm import VllmEngine

_CLIENTS: dict[EngineKind, type[SglangEngine] | type[VllmEngine]] = {"sglang": SglangEngine, "vllm": VllmEngine}


def connect(
    kind: EngineKind, url: str, request_seconds: float, retries: int, api_key: str | None = None
) -> SglangEngine | VllmEngine:
    """A client of the server at `url`; see `HttpEngine` for the rest. Must be called on the event loop that uses it."""
    return _CLIENTS[kind](url, request_seconds, retries, api_key)
