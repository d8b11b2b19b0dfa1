"""What the agents of a host share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol

from concur_batch.agent.beginning import Beginning
from concur_batch.agent.config import HostConfig
from concur_batch.agent.gate import Gate
from concur_batch.agent.tokenizer import Tokenizer
from concur_batch.agent.turnstile import Turnstile
from concur_batch.control.member import Spent
from concur_batch.engine.protocol import Engine
from concur_batch.trace.intents import Intents
from tools_env.spec import ToolEnvironment, ToolSpec


class Records(Protocol):
    """Where rows go."""

    def put(self, item: bytes) -> int: ...

    def is_sent(self, number: int) -> bool:
        """Whether the item of that number is durable."""
        ...

    async def room(self) -> None:
        """Wait while too many rows are not yet durable."""
        ...


@dataclass(slots=True)
class Pool:
    """One KV pool as an agent sees it: the engine to send to, and the dp rank to pin, where the engine has several.

    `tokens` is None where the engine does not tell; it changes when the engine is restarted with another pool.
    """

    engine: Engine
    dp_rank: int | None
    page_size: int
    tokens: int | None


@dataclass(frozen=True, slots=True)
class Services:
    """What every agent of a host shares. `spend` takes what a turn in a pool has cost."""

    config: HostConfig
    pools: Mapping[str, Pool]
    spend: Callable[[str, Spent], None]
    tools: ToolEnvironment
    specs: Sequence[ToolSpec]
    tokenizer: Tokenizer
    encoder: Executor  # where long observations are tokenized
    turnstile: Turnstile
    beginning: Beginning
    gate: Gate
    records: Records
    intents: Intents
    clock: Callable[[], float]  # seconds since the run's start
    troubles: dict[str, str] = field(default_factory=dict)  # why an agent cannot go on for now, by its place

    @property
    def largest_tokens(self) -> int | None:
        """The size of the largest pool; None where one does not tell its own."""
        sizes = [pool.tokens for pool in self.pools.values() if pool.tokens is not None]
        return max(sizes) if len(sizes) == len(self.pools) else None

    def has_larger(self, pool: Pool) -> bool:
        """Whether another pool may hold what this one cannot."""
        largest_tokens = self.largest_tokens
        return pool.tokens is not None and (largest_tokens is None or largest_tokens > pool.tokens)
