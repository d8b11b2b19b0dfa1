"""The simulated engine's settings, named after SGLang's, with SGLang 0.5.23's defaults."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from concur_batch.simulator.node import Eviction

Count = Annotated[int, Field(ge=1)]
WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
Schedule = Literal["fcfs", "lpm"]

# SGLang clips what a request may still generate to this much when it estimates the pool's future use.
CLIP_NEW_TOKENS = 4096


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class HiCacheConfig:
    """A second tier of cache in host memory, for `host_tokens` in whole pages.

    KV is copied there when it is inserted first (`write_through`), at its second hit (`write_through_selective`), or
    when the device evicts it, which waits for the copy (`write_back`).
    """

    host_tokens: Count
    write_policy: WritePolicy = "write_through"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class EngineConfig:
    """Sizes in tokens.

    A prefill batch computes no more than `chunked_prefill_tokens`, and lets nobody in once it has
    `max_prefill_tokens`. `eviction` is which cached prefix goes first, `schedule` which request is next: the first
    come, or the one with the longest cached prefix. `hicache` None: what the device evicts is gone. `sessions`: the
    requests' sessions count, and prefixes that belong to no open one go first, on either tier.

    `max_running_requests` None means SGLang's rule. `conservativeness` scales the share of its allowance that a
    running request is expected to use. Every `refresh_passes` admission passes, the cached prefixes of the first
    `refresh_requests` waiting requests count as used, the head's last (0 passes: never).
    """

    pool_tokens: Count
    page_size: Count = 1
    context_tokens: Count = 131_072
    chunked_prefill_tokens: Count = 8192
    max_running_requests: Count | None = None
    conservativeness: Annotated[float, Field(gt=0)] = 1.0
    refresh_passes: Annotated[int, Field(ge=0)] = 32
    refresh_requests: Count = 128
    eviction: Eviction = "lru"
    schedule: Schedule = "fcfs"
    max_prefill_tokens: Count = 16_384
    hicache: HiCacheConfig | None = None
    sessions: bool = False

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.chunked_prefill_tokens < self.page_size:
            raise ValueError("`chunked_prefill_tokens` must hold a page of `page_size` tokens")
        if self.max_input_tokens < 2:
            raise ValueError("`pool_tokens` and `context_tokens` leave no room for a prompt")
        return self

    @property
    def running_limit(self) -> int:
        """`max_running_requests`, or pool / context x 512 within 2048 to 4096, at most half the pool."""
        if self.max_running_requests is not None:
            return self.max_running_requests
        by_pool = int(self.pool_tokens / self.context_tokens * 512)
        return max(1, min(max(2048, min(by_pool, 4096)), self.pool_tokens // 2))

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output of one request, so that it can be admitted when it is alone."""
        whole_pages = self.pool_tokens - self.pool_tokens % self.page_size
        return min(self.context_tokens - 1, whole_pages - self.page_size)

    @property
    def max_input_tokens(self) -> int:
        """A prompt must be shorter than this: SGLang keeps five tokens apart for the output."""
        return self.max_request_tokens - 5
