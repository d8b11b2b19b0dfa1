"""The waiting requests by SGLang 0.5.23's `lpm`: those with the longest cached prefix first."""

from __future__ import annotations

from collections.abc import Iterable

from concur_batch.simulator.pool import KvPool
from concur_batch.simulator.radix import RadixCache
from concur_batch.simulator.sequence import Sequence

# Constants of srt/managers/schedule_policy.py. A longer queue is served first come first served: matching costs time.
MAX_ORDERED = 128
# Who has at most so much cached on the device and shares so much with one before it in the queue waits for that one,
# whose prefill will cache it.
_LITTLE_CACHED_TOKENS = 32
_MUCH_SHARED_TOKENS = 32


def by_longest_prefix(waiting: Iterable[Sequence], pool: KvPool) -> list[Sequence]:
    """The waiting in their new order, equals in the old one. Counts as an access to their cached prefixes."""
    queued = RadixCache()  # what those who do not wait for others will cache
    ranks: dict[Sequence, float] = {}
    for sequence in waiting:
        last, cached_tokens = pool.match(sequence)
        ranks[sequence] = -cached_tokens
        if cached_tokens - pool.tree.resident(last)[1] > _LITTLE_CACHED_TOKENS:
            continue
        if queued.match(sequence.tokens, sequence.filled_tokens)[1] >= _MUCH_SHARED_TOKENS:
            ranks[sequence] = float("inf")
        else:
            queued.insert(sequence.tokens, sequence.filled_tokens)
    return sorted(ranks, key=ranks.__getitem__)
