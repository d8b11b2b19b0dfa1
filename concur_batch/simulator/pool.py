"""The KV pool: rows that sequences own, and the radix tree which shares the rest of it."""

from __future__ import annotations

from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.node import Node
from concur_batch.simulator.radix import RadixCache
from concur_batch.simulator.sequence import Sequence
from concur_batch.simulator.tiers import MIN_LOAD_TOKENS, TieredCache


class KvPool:
    """`total_tokens` = available + evictable (cached, unused) + used (locked in the tree, or a sequence's own)."""

    def __init__(self, config: EngineConfig) -> None:
        self.page_size = config.page_size
        self.total_tokens = config.pool_tokens - config.pool_tokens % config.page_size
        self.tiers: TieredCache | None = None
        if config.hicache is not None:
            self.tiers = TieredCache(config.page_size, config.eviction, config.hicache, tagged=config.sessions)
        self.tree = self.tiers or RadixCache(config.page_size, config.eviction, tagged=config.sessions)
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

    @property
    def quiet_tokens(self) -> int:
        """What can be had without waiting for anything."""
        writes_back = self.tiers is not None and self.tiers.write_back
        return self.available_tokens if writes_back else self.reachable_tokens

    def in_pages(self, tokens: int) -> int:
        """`tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def attach(self, sequence: Sequence) -> None:
        """Give it its cached prefix, locked. The last token is always computed, as its logits are needed."""
        last, length = self.match(sequence)
        node, host_tokens = self.tree.resident(last)
        self.tree.lock(node)
        sequence.node = node
        sequence.host_node, sequence.host_tokens = last, host_tokens
        sequence.prefix_tokens = sequence.kv_tokens = length - host_tokens

    def match(self, sequence: Sequence) -> tuple[Node, int]:
        """The end and the length of its cached prefix, which counts as used now."""
        return self.tree.match(sequence.tokens, sequence.filled_tokens - 1)

    def load(self, sequence: Sequence) -> int:
        """Bring an attached sequence's prefix back from the host: all of it, or nothing; the tokens loaded."""
        tokens, node, last = sequence.host_tokens, sequence.node, sequence.host_node
        sequence.host_node, sequence.host_tokens = None, 0
        if self.tiers is None or node is None or last is None or tokens < MIN_LOAD_TOKENS:
            return 0
        self.tree.lock(last)
        self.make_room(tokens)
        if self.available_tokens < tokens:
            self.tree.unlock(last)
            return 0
        self.tiers.load(last)
        self.tree.unlock(node)
        sequence.node = last
        sequence.prefix_tokens += tokens
        sequence.kv_tokens = sequence.prefix_tokens
        return tokens

    def make_room(self, tokens: int) -> None:
        """Evict what is short of `tokens` available ones."""
        shortfall = tokens - self.available_tokens
        if shortfall > 0:
            self.tree.evict(shortfall)

    def grow(self, sequence: Sequence, tokens: int) -> None:
        """Take `tokens` more rows for it."""
        self.take(self.in_pages(sequence.kv_tokens + tokens) - self.in_pages(sequence.kv_tokens))
        sequence.kv_tokens += tokens

    def take(self, tokens: int) -> None:
        """Take `tokens` in whole pages for sequences, evicting what is short of them."""
        self.make_room(tokens)
        assert tokens <= self.available_tokens, "the scheduler took more than the pool has"
        self._private_tokens += tokens

    def publish(self, sequence: Sequence) -> None:
        """Put its whole pages into the tree, for others to share; it keeps them locked."""
        if sequence.node is None:
            return
        old = sequence.node
        whole = sequence.kv_tokens - sequence.kv_tokens % self.page_size
        # Rows that another sequence has published meanwhile exist once from here on.
        self._private_tokens -= whole - sequence.prefix_tokens
        node = self.tree.insert(sequence.tokens, whole, old, sequence.prefix_tokens, sequence.published_tokens)
        sequence.published_tokens = whole
        prompt = sequence.input_tokens - sequence.input_tokens % self.page_size
        if 0 < prompt < whole:
            self.tree.prefer(node, whole, prompt)
        self.tree.lock(node)
        self.tree.unlock(old)
        sequence.node = node
        sequence.prefix_tokens = whole

    def tag(self, sequence: Sequence) -> None:
        """What it has published belongs to its session, if it has one."""
        if sequence.session is not None and sequence.node is not None:
            self.tree.sessions.finished(sequence.session, sequence.node)

    def release(self, sequence: Sequence) -> None:
        """Free its own rows and unlock its prefix, which stays cached."""
        if sequence.node is None:
            return
        self._private_tokens -= self.in_pages(sequence.kv_tokens) - sequence.prefix_tokens
        self.tree.unlock(sequence.node)
        sequence.node = sequence.host_node = None
        sequence.kv_tokens = sequence.prefix_tokens = sequence.host_tokens = sequence.published_tokens = 0

    def check_integrity(self) -> None:
        """Raise AssertionError where the accounts do not agree."""
        self.tree.check_integrity()
        assert self._private_tokens >= 0
        assert self.available_tokens >= 0
