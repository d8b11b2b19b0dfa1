"""What a tier evicts next: nodes in a heap by their eviction keys, which change while they wait."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from concur_batch.simulator.node import EvictionKey, Node


class EvictionQueue:
    """Nodes that were `evictable` when they came, the one with the smallest `key` first.

    Keys rise with every use, which is noticed when a node's turn comes: nobody need tell. Where a key falls,
    `fell` must be called.
    """

    def __init__(self, key: Callable[[Node], EvictionKey], evictable: Callable[[Node], bool]) -> None:
        self._key = key
        self._evictable = evictable
        self._heap: list[tuple[EvictionKey, int, Node]] = []
        self._keys: dict[Node, EvictionKey] = {}  # of the entries that count: a node has one at most
        self._superseded = 0

    def __contains__(self, node: Node) -> bool:
        return node in self._keys

    def add(self, node: Node) -> None:
        """Give it a place, where it can be evicted and has none."""
        if node not in self._keys and self._evictable(node):
            key = self._keys[node] = self._key(node)
            heapq.heappush(self._heap, (key, node.serial, node))

    def pop(self) -> Node | None:
        """Take out the evictable node with the smallest key; None: there is none."""
        while self._heap:
            key, _, node = self._heap[0]
            if self._keys.get(node) is not key:
                heapq.heappop(self._heap)
                self._superseded -= 1
                continue
            evictable, now = self._evictable(node), self._key(node)
            if evictable and key != now:
                self._keys[node] = now
                heapq.heapreplace(self._heap, (now, node.serial, node))
                continue
            heapq.heappop(self._heap)
            del self._keys[node]
            if evictable:
                return node
        return None

    def fell(self, node: Node) -> None:
        """Its key is smaller than it was: the entry that it may have is superseded."""
        if self._keys.pop(node, None) is None:
            return
        self._superseded += 1
        self.add(node)
        if 2 * self._superseded > len(self._heap):  # or they would keep nodes alive that have left the tree
            self._heap = [entry for entry in self._heap if self._keys.get(entry[2]) is entry[0]]
            heapq.heapify(self._heap)
            self._superseded = 0

    def clear(self) -> None:
        """Forget all."""
        self._heap.clear()
        self._keys.clear()
        self._superseded = 0

    def check_integrity(self) -> None:
        """Raise AssertionError where the entries are not one for each node, under a key that is no larger than its."""
        valid = [node for key, _, node in self._heap if self._keys.get(node) is key]
        assert len(valid) == len(self._keys) == len(self._heap) - self._superseded
        assert all(key <= self._key(node) for node, key in self._keys.items())
