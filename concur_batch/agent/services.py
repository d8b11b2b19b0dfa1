"""What the agents of a host share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from concur_batch.agent.gate import Gate
from concur_batch.agent.prompting import Format
from concur_batch.agent.tokenizer import Tokenizer
from concur_batch.agent.turnstile import Turnstile
from concur_batch.engine.protocol import Engine
from concur_batch.workload.schema import Limits, Sampling
from tools_env.spec import ToolEnvironment, ToolSpec


class Records(Protocol):
    """Where rows go."""

    def put(self, item: bytes) -> int: ...

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
    """What every agent of a host shares."""

    run: str
    pools: Mapping[str, Pool]
    spend: Callable[[str, int, int, int], None]  # pool; input, device hit and recomputed tokens of a turn
    tools: ToolEnvironment
    specs: Sequence[ToolSpec]
    tokenizer: Tokenizer
    encoder: Executor  # where long observations are tokenized
    turnstile: Turnstile
    gate: Gate
    records: Records
    clock: Callable[[], float]  # seconds since the run's start
    format: Format
    system: str
    sampling: Sampling
    limits: Limits
    context_tokens: int  # the engine's or the workload's limit, whichever is smaller
    kv_budget_tokens: int | None
    deadline_seconds: float | None
    keep_workspaces: bool
    host: str
