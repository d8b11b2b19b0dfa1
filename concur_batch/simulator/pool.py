"""The KV pool: rows that sequences own, and the radix tree which shares the rest of it."""

from __future__ import annotations

from concur_batch.simulator.radix import TOKEN_BYTES, RadixCache
from concur_batch.simulator.sequence import Sequence


class KvPool:
    """`total_tokens` = available + evictable (cached, unused) + used (locked in the tree, or a sequence's own)."""

    def __init__(self, total_tokens: int, page_size: int) -> None:
        self.total_tokens = total_tokens - total_tokens % page_size
        self.page_size = page_size
        self.tree = RadixCache(page_size)
        self._private_tokens = 0

    @property
    def used_tokens(self) -> int:
        return self.tree.locked_tokens + self._private_tokens

    @property
    def evictable_tokens(self) -> int:
        return self.tree.evictable_tokens

    @property
    def available_tokens(self) -> int:
        return self.total_tokens - self.used_tokens - self.evictable_tokens

    @property
    def reachable_tokens(self) -> int:
        """What can be had, by eviction if need be."""
        return self.total_tokens - self.used_tokens

    def in_pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def attach(self, sequence: Sequence) -> None:
        """Give it its cached prefix, locked. The last token is always computed, as its logits are needed."""
        limit = (sequence.filled_tokens - 1) * TOKEN_BYTES
        node, length = self.tree.match(sequence.tokens[:limit])
        self.tree.lock(node)
        sequence.node = node
        sequence.prefix_tokens = sequence.kv_tokens = length

    def touch(self, sequence: Sequence) -> None:
        """Count its cached prefix as used now."""
        self.tree.match(sequence.tokens[: (sequence.filled_tokens - 1) * TOKEN_BYTES])

    def growth_need(self, sequence: Sequence, tokens: int) -> int:
        """What `tokens` more rows of it take from the pool."""
        return self.in_pages(sequence.kv_tokens + tokens) - self.in_pages(sequence.kv_tokens)

    def make_room(self, tokens: int) -> None:
        """Evict what is short of `tokens` available ones."""
        shortfall = tokens - self.available_tokens
        if shortfall > 0:
            self.tree.evict(shortfall)

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Take `tokens` more rows for it."""
        need = self.growth_need(sequence, tokens)
        self.make_room(need)
        assert need <= self.available_tokens, "the scheduler took more than the pool has"
        self._private_tokens += need
        sequence.kv_tokens += tokens

    def publish(self, sequence: Sequence) -> None:
        """Put its whole pages into the tree, for others to share; it keeps them locked."""
        if sequence.node is None:
            return
        old = sequence.node
        whole = sequence.kv_tokens - sequence.kv_tokens % self.page_size
        # Rows that another sequence has published meanwhile exist once from here on.
        self._private_tokens -= whole - sequence.prefix_tokens
        node = self.tree.insert(sequence.tokens[: whole * TOKEN_BYTES], old, sequence.prefix_tokens)
        self.tree.lock(node)
        self.tree.unlock(old)
        sequence.node = node
        sequence.prefix_tokens = whole

    def release(self, sequence: Sequence) -> None:
        """Free its own rows and unlock its prefix, which stays cached."""
        if sequence.node is None:
            return
        self._private_tokens -= self.in_pages(sequence.kv_tokens) - sequence.prefix_tokens
        self.tree.unlock(sequence.node)
        sequence.node = None
        sequence.kv_tokens = sequence.prefix_tokens = 0

    def flush(self) -> None:
        """Drop the cache, which nobody may be using."""
        self.tree.evict(self.tree.evictable_tokens)

    def check_integrity(self) -> None:
        """Raise AssertionError where the accounts do not agree."""
        self.tree.check_integrity()
        assert self._private_tokens >= 0
        assert self.available_tokens >= 0
