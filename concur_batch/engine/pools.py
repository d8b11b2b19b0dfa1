"""The KV pools of a run's engine: one for each replica and dp rank. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from concur_batch.engine.protocol import EngineInfo

EngineKind = Literal["sglang", "vllm", "openai"]
"""Whose protocol a server speaks; our simulation speaks SGLang's, and openai is that of any compatible server."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A server that serves. `model` is the name under which one that takes messages is asked for its model."""

    kind: EngineKind
    url: str
    api_key: str | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """One pool: `dp_rank` is what requests are pinned by, None where the server has only one. `tokens` is its size."""

    name: str
    url: str
    api_key: str | None
    dp_rank: int | None
    page_size: int
    tokens: int | None
    kind: EngineKind = "sglang"
    model: str = ""

    @property
    def rank(self) -> int:
        """Under which the server's readings hold this pool's."""
        return self.dp_rank or 0


def name_pools(replicas: Sequence[Replica], infos: Sequence[EngineInfo]) -> tuple[PoolAddress, ...]:
    """All pools: "0", "1", … by replica, and "0.0", "0.1", … where a replica has several dp ranks."""
    pools: list[PoolAddress] = []
    for number, (replica, info) in enumerate(zip(replicas, infos, strict=True)):
        several = len(info.dp_ranks) > 1
        for rank, tokens in zip(info.dp_ranks, info.pool_tokens_by_rank, strict=True):
            name = f"{number}.{rank}" if several else str(number)
            pinned = rank if several else None
            key, kind = replica.api_key, replica.kind
            pools.append(PoolAddress(name, replica.url, key, pinned, info.page_size, tokens, kind, replica.model))
    return tuple(pools)
