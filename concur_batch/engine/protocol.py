"""What the orchestrator asks of an inference engine, whichever it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

FinishReason = Literal["stop", "length", "abort"]
TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation in the form of OpenAI's protocol, with the tools that the model is offered."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation: token ids in. `rid` has a fixed width, since engines match rids by prefix on abort.

    `dp_rank` pins it to one KV pool of the engine; None leaves the choice to the engine. `chat` is what an engine that
    takes messages is sent in the ids' place, which are then an estimate. `priority` (the higher goes first) and
    `session` (whose requests share a history) are for engines that heed them; None sends none.
    """

    rid: str
    input_ids: TokenIds
    max_new_tokens: int
    seed: int
    sampling: Mapping[str, Any] = field(default_factory=dict)
    logprobs: bool = False
    dp_rank: int | None = None
    chat: Chat | None = None
    priority: int | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """Token ids out, and what the engine tells of the request; None where it does not tell.

    An engine that takes messages gives no ids but the assistant's `message`, as it is, and `told_output_tokens`, how
    many tokens it has counted for it; `logprobs` are then of its own tokens.
    """

    output_ids: list[int]
    finish_reason: FinishReason
    input_tokens: int
    cached_device_tokens: int | None
    cached_host_tokens: int = 0
    cached_storage_tokens: int = 0
    retractions: int | None = None
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    logprobs: list[float] | None = None
    attempts: int = 1
    message: Mapping[str, Any] | None = None
    told_output_tokens: int | None = None

    @property
    def output_tokens(self) -> int:
        """How many tokens were sampled."""
        return len(self.output_ids) if self.told_output_tokens is None else self.told_output_tokens

    @property
    def context_tokens(self) -> int:
        """Prompt and output together."""
        return self.input_tokens + self.output_tokens


class EngineError(Exception):
    """A generation that failed for reasons of the engine: infrastructure, never the agent's doing."""


class EngineDown(EngineError):
    """The engine takes no requests now: it is gone, starts, or drains. Nothing is wrong with the request."""


class EngineBusy(EngineError):
    """The engine asks to be left alone for `wait_seconds`, and takes the request then."""

    def __init__(self, problem: str, wait_seconds: float) -> None:
        super().__init__(problem)
        self.wait_seconds = wait_seconds


class RequestRejected(EngineError):
    """The engine refuses the request as it is; sending it again would not help."""


class ContextOverflow(RequestRejected):
    """The prompt does not fit the model's context or the engine's whole pool: the agent's limit, not a fault."""


class PoolOverflow(ContextOverflow):
    """The prompt fits the model's context, but not the engine's whole KV pool."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a probe found; None where the engine does not tell.

    Each data-parallel rank has a KV pool of its own: `pool_tokens_by_rank` stands in the order of `dp_ranks`, and
    `pool_tokens` is the smallest, which any prompt must fit. `missing_signals` are those that some rank does not tell.
    """

    version: str | None
    pool_tokens: int | None
    page_size: int
    context_tokens: int | None
    missing_signals: tuple[str, ...] = ()
    dp_ranks: tuple[int, ...] = (0,)
    pool_tokens_by_rank: tuple[int | None, ...] = (None,)


@dataclass(frozen=True, slots=True)
class Reading:
    """The gauges and cumulative counters of one KV pool at one moment; None where the engine does not tell.

    `at_seconds` is our monotonic clock at the read; `stamp_seconds` the engine's own time stamp of its gauges (any
    epoch), by which freshness is judged. `estimated`: what it holds is our own account, since the engine has none.
    """

    at_seconds: float
    stamp_seconds: float | None = None
    estimated: bool = False
    pool_tokens: int | None = None
    locked_tokens: int | None = None
    evictable_tokens: int | None = None
    running_requests: int | None = None
    waiting_requests: int | None = None
    input_tokens_total: int | None = None  # prompt tokens that missed every tier, first attempts
    device_hit_tokens_total: int | None = None
    host_hit_tokens_total: int | None = None
    storage_hit_tokens_total: int | None = None
    computed_tokens_total: int | None = None  # prefill compute, recomputation after retraction included
    decoded_tokens_total: int | None = None
    evicted_tokens_total: int | None = None
    retractions_total: int | None = None
    offloaded_tokens_total: int | None = None  # device to host
    offloaded_bytes_total: int | None = None  # of all tensor-parallel ranks
    reloaded_tokens_total: int | None = None  # host to device
    reloaded_bytes_total: int | None = None
    reload_seconds_total: float | None = None  # of the copies


class Engine(Protocol):
    """What an agent needs of an engine. Safe for thousands of concurrent calls on one event loop."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Run one generation to its end. Cancelling the call aborts the request on the engine.

        Raises ContextOverflow, EngineDown at once where the engine takes no requests, or EngineError once what is
        safe to repeat has been repeated.
        """
        ...

    async def end_session(self, session: str) -> None:
        """Tell the engine, where it was told of the session, that no further request belongs to it. Never raises for a
        server that does not answer."""
        ...
