"""The radix tree with a second tier in host memory, as SGLang 0.5.23's HiCache keeps it.

A node is on the device, on the host, or on both. What goes to the host and when is the write policy's: `write_through`
copies a node when it is inserted first, `write_through_selective` at its second hit, `write_back` when it is evicted.
The host frees its leaves by the device's eviction policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from concur_batch.simulator.config import HiCacheConfig
from concur_batch.simulator.eviction import EvictionQueue
from concur_batch.simulator.node import Eviction, Node
from concur_batch.simulator.radix import RadixCache

# Fewer host tokens are computed again and not loaded: SGLang 0.5.23's `load_back_threshold`.
MIN_LOAD_TOKENS = 10

_STORE_AT_HITS = {"write_through": 1, "write_through_selective": 2}


@dataclass(slots=True)
class TierTotals:
    """Tokens since the start: copied to the host, loaded back, dropped from the device without a copy, evicted from
    the host. What a full host gives up while the device still has it counts as evicted from the host too."""

    offloaded: int = 0
    reloaded: int = 0
    dropped: int = 0
    host_evicted: int = 0


class TieredCache(RadixCache):
    """A RadixCache whose evicted nodes live on in `host_tokens` of host memory.

    It decides what is copied and who takes the room for it; somebody else owns the link, takes the `unsent` stores and
    the `written_back_tokens` that eviction has to wait for, and unlocks a stored node when its copy has arrived.
    """

    def __init__(self, page_size: int, eviction: Eviction, config: HiCacheConfig, *, tagged: bool = False) -> None:
        super().__init__(page_size, eviction, tagged=tagged)
        self.host_tokens = config.host_tokens - config.host_tokens % page_size
        self.host_used_tokens = 0
        self.totals = TierTotals()
        self.unsent: list[tuple[Node, int]] = []  # and its tokens; locked until they are stored
        self.written_back_tokens = 0
        self.write_back = config.write_policy == "write_back"
        self._store_at_hits = _STORE_AT_HITS.get(config.write_policy, 0)
        self._host_queue = EvictionQueue(self._key, _is_host_leaf)
        # write_back's only: on both tiers, so that the host's copy can be spared, the first stored one first. Some are
        # that no longer: they are found out when their turn comes.
        self._duplicates: dict[Node, None] = {}
        self._loading: list[Node] = []

    def resident(self, node: Node) -> tuple[Node, int]:
        """The last node on the device of the path that ends at `node`, and how many of its tokens only the host has."""
        tokens = 0
        while not node.on_device:
            tokens += node.size
            assert node.parent is not None
            node = node.parent
        return node, tokens

    def load(self, node: Node) -> int:
        """Bring the locked path that ends at `node` back to the device, which has the room; tokens loaded."""
        path = self._materialize(node)
        self._loading += path
        loaded = sum(step.size for step in path)
        self.totals.reloaded += loaded
        return loaded

    def finish_loads(self) -> None:
        """What was loaded has arrived: the host's copies can be spared."""
        self._add_duplicates(self._loading)
        self._loading.clear()

    def unlock(self, node: Node) -> None:
        super().unlock(node)
        if not node.on_device:
            self._host_queue.add(node)

    def clear(self) -> None:
        super().clear()
        self.totals.host_evicted += self.host_used_tokens
        self.host_used_tokens = 0
        self._host_queue.clear()
        self._duplicates.clear()
        self._loading.clear()

    def check_integrity(self) -> None:
        super().check_integrity()
        on_host = 0
        for node in self.nodes():
            if node.on_host:
                on_host += node.size
            if _is_host_leaf(node):
                assert node in self._host_queue, "an evictable host leaf is missing from the queue"
            if not self.write_back and node.on_host:
                assert node.parent is self.root or node.parent is None or node.parent.on_host
        self._host_queue.check_integrity()
        assert on_host == self.host_used_tokens <= self.host_tokens
        assert self.totals.offloaded - self.totals.host_evicted == on_host
        assert all(node.on_host and node.locks for node, _ in self.unsent)

    # What the tree does otherwise

    def _free(self, node: Node) -> None:
        if self.write_back and not node.on_host and self._take_host_room(node.size):
            node.on_host = True
            self._duplicates.setdefault(node)
            self.written_back_tokens += node.size
        if not node.on_host:
            self._drop(node)
            return
        node.on_device = False
        parent = node.parent
        assert parent is not None
        parent.device_children -= 1
        if not parent.device_children:
            self._queue.add(parent)
        self._host_queue.add(node)

    def _restore(self, node: Node) -> None:
        self._add_duplicates(reversed(self._materialize(node)))

    def _count_hits(self, node: Node, end_tokens: int, counted_tokens: int) -> None:
        if self.write_back:
            return  # SGLang counts none, whatever the eviction policy
        path = []
        while end_tokens > counted_tokens:
            path.append(node)
            end_tokens -= node.size
            assert node.parent is not None
            node = node.parent
        for node in reversed(path):
            node.hits += 1
            if not node.on_host and node.hits >= self._store_at_hits:
                self._store(node)

    def _split(self, node: Node, at: int) -> Node:
        upper = super()._split(node, at)
        self._add_duplicates([upper])
        if node in self._loading:
            self._loading.append(upper)
        return upper

    def _remove(self, node: Node) -> None:
        super()._remove(node)
        assert node.parent is not None
        if not node.parent.children:
            self._host_queue.add(node.parent)

    def _fell(self, node: Node) -> None:
        super()._fell(node)
        self._host_queue.fell(node)

    # Host

    def _add_duplicates(self, nodes: Iterable[Node]) -> None:
        if self.write_back:
            for node in nodes:
                if node.on_device and node.on_host:
                    self._duplicates.setdefault(node)

    def _store(self, node: Node) -> None:
        """Copy `node` to the host, and before it those above it that have no copy; as far as there is room."""
        chain = []
        step: Node | None = node
        while step is not None and step.parent is not None and not step.on_host:
            chain.append(step)
            step = step.parent
        for node in reversed(chain):
            if not self._take_host_room(node.size):
                return
            node.on_host = True
            self.lock(node)
            self.unsent.append((node, node.size))

    def _materialize(self, node: Node) -> list[Node]:
        """Put the path that ends at `node` on the device, each as locked as it is; those that were not there."""
        path = []
        while not node.on_device:
            assert node.parent is not None
            node.on_device = True
            node.parent.device_children += 1
            if node.locks:
                self.locked_tokens += node.size
            else:
                self.evictable_tokens += node.size
                self._queue.add(node)
            path.append(node)
            node = node.parent
        return path

    def _take_host_room(self, tokens: int) -> bool:
        """Take room for `tokens` on the host, evicting if need be; whether there was enough."""
        short = tokens - (self.host_tokens - self.host_used_tokens)
        if short > 0 and self._evict_host(short) < short:
            return False
        self.host_used_tokens += tokens
        self.totals.offloaded += tokens
        return True

    def _evict_host(self, tokens: int) -> int:
        """Free what the device has too, and then host leaves; how many tokens were freed."""
        freed = self._spare_duplicates(tokens)
        while freed < tokens and (node := self._host_queue.pop()) is not None:
            freed += self._leave_host(node)
            self._remove(node)
        return freed

    def _spare_duplicates(self, tokens: int) -> int:
        """Free up to `tokens` of copies of what the device has, of its leaves last: these are evicted soon."""
        freed = 0
        for leaves in (False, True):
            for node in list(self._duplicates):
                if freed >= tokens:
                    return freed
                if not (node.on_device and node.on_host):
                    del self._duplicates[node]
                elif leaves or node.device_children or node.locks:
                    del self._duplicates[node]
                    freed += self._leave_host(node)
        return freed

    def _leave_host(self, node: Node) -> int:
        node.on_host = False
        self.host_used_tokens -= node.size
        self.totals.host_evicted += node.size
        return node.size

    def _drop(self, node: Node) -> None:
        """Lose a device leaf that has no copy, and what the host has below it."""
        for child in list(node.children.values()):
            self._drop_host(child)
        self.totals.dropped += node.size
        self._remove(node)
        node.on_device = False

    def _drop_host(self, node: Node) -> None:
        for child in list(node.children.values()):
            self._drop_host(child)
        self._leave_host(node)
        self._remove(node)


def _is_host_leaf(node: Node) -> bool:
    return not (node.on_device or node.children or node.locks or not node.on_host)
