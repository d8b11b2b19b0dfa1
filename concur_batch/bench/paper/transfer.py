"""Figure 1: how a request's context and KV grow over its steps, and what moving or computing that KV takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from concur_batch.bench.paper.published import REQUEST_TOKENS
from concur_batch.bench.plans import Load
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel

MOST_REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Growth:
    """What Figure 1 shows, of one load on one deployment: `contexts` are tokens by step (see below), and
    `kv_bytes_per_token` those of all ranks together."""

    contexts: Sequence[float]
    kv_bytes_per_token: int
    restoring: Sequence[Restoring]


@dataclass(frozen=True, slots=True)
class Restoring:
    """Simulated seconds until the KV of so many requests of REQUEST_TOKENS is on the device again."""

    requests: int
    transfer_seconds: float
    recompute_seconds: float


def contexts(load: Load) -> list[float]:
    """The mean history before each step's generation, over the agents that take so many steps, in tokens."""
    histories: list[list[int]] = []
    for plan in load.plans:
        tokens = load.shared_tokens
        for step, turn in enumerate(plan.turns):
            if step == len(histories):
                histories.append([])
            histories[step].append(tokens + turn.new_tokens)
            tokens += turn.new_tokens + turn.output_tokens
    return [mean(step) for step in histories]


def restoring(cost: CostModel, config: EngineConfig) -> Sequence[Restoring]:
    """From 1 to MOST_REQUESTS requests at once: over the host link, one after the other, or by prefill in chunks."""
    return [
        Restoring(
            requests=requests,
            transfer_seconds=requests * REQUEST_TOKENS * cost.load_seconds_per_token,
            recompute_seconds=_prefill_seconds(cost, requests, config.chunked_prefill_tokens),
        )
        for requests in range(1, MOST_REQUESTS + 1)
    ]


def _prefill_seconds(cost: CostModel, requests: int, chunk_tokens: int) -> float:
    seconds, left = 0.0, requests
    each = max(1, chunk_tokens // REQUEST_TOKENS)  # whole requests in a prefill batch
    while left > 0:
        batch = min(each, left)
        seconds += cost.prefill_seconds([(0, REQUEST_TOKENS)] * batch)
        left -= batch
    return seconds
