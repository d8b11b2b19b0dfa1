"""Radix tree of cached KV: which token prefixes are resident, which of them are in use, and what goes first.

Token ids are packed: 4 bytes a token (int32), so that comparing a cached segment is one memcmp however long it is.
All sizes in the interface are in tokens. Rules follow SGLang 0.5.23's UnifiedRadixCache: nodes split where
sequences diverge, a lock on a node holds its whole path, and eviction takes whole unlocked leaves, least recently
used first, until at least what was asked for is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

TOKEN_BYTES = 4


def pack(ids: NDArray[np.integer]) -> bytes:
    """Token ids as the tree stores them."""
    return np.ascontiguousarray(ids, dtype=np.int32).tobytes()


class Node:
    """A run of tokens that follows its parent's run. `locks` counts the sequences which use it."""

    __slots__ = ("children", "last_access", "locks", "parent", "queued", "serial", "tokens")

    def __init__(self, tokens: bytes, parent: Node | None, serial: int) -> None:
        self.tokens = tokens
        self.parent = parent
        self.children: dict[bytes, Node] = {}  # by the child's first page
        self.locks = 0
        self.last_access = 0
        self.serial = serial
        self.queued = False  # whether the eviction heap has an entry for it

    def __len__(self) -> int:
        return len(self.tokens) // TOKEN_BYTES


class RadixCache:
    """The tree and its counters: `locked_tokens` + `evictable_tokens` = tokens resident in it."""

    def __init__(self, page_size: int = 1) -> None:
        self.page_size = page_size
        self.locked_tokens = 0
        self.evictable_tokens = 0
        self.evicted_tokens_total = 0
        self.root = Node(b"", None, 0)
        self._page_bytes = page_size * TOKEN_BYTES
        self._tick = 0
        self._serial = 0
        # Entries (last access when queued, serial, node); stale ones are mended or dropped when they surface.
        self._heap: list[tuple[int, int, Node]] = []

    def match(self, tokens: bytes) -> tuple[Node, int]:
        """The longest cached prefix, in whole pages: its last node and its length. Counts as an access."""
        node, offset = self._descend(tokens, self.root, 0)
        self._touch(node)
        return node, offset // TOKEN_BYTES

    def insert(self, tokens: bytes, under: Node | None = None, prefix_tokens: int = 0) -> Node:
        """Make the whole pages of `tokens` resident; the node where they end. Counts as an access.

        `under` may name a locked node at which the first `prefix_tokens` of `tokens` end: the walk starts there.
        """
        node, offset = self._descend(tokens, under or self.root, prefix_tokens * TOKEN_BYTES)
        end = len(tokens) - len(tokens) % self._page_bytes
        if offset < end:
            node = self._add(tokens[offset:end], node)
            self.evictable_tokens += len(node)
            self._queue(node)
        self._touch(node)
        return node

    def lock(self, node: Node) -> None:
        """Protect the path that ends at `node` from eviction."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0:
                size = len(step)
                self.evictable_tokens -= size
                self.locked_tokens += size
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of the same node."""
        step: Node | None = node
        while step is not None:
            step.locks -= 1
            if step.locks == 0:
                size = len(step)
                self.evictable_tokens += size
                self.locked_tokens -= size
                self._queue(step)
            step = step.parent

    def evict(self, tokens: int) -> int:
        """Drop unlocked leaves until at least `tokens` are free or none is left; how many were dropped."""
        evicted = 0
        while evicted < tokens and self._heap:
            stamp, _, node = heapq.heappop(self._heap)
            node.queued = False
            if stamp != node.last_access:
                self._queue(node)
                continue
            parent = node.parent
            if node.children or node.locks or parent is None:
                continue
            del parent.children[node.tokens[: self._page_bytes]]
            evicted += len(node)
            self._queue(parent)
        self.evictable_tokens -= evicted
        self.evicted_tokens_total += evicted
        return evicted

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def check_integrity(self) -> None:
        """Raise AssertionError where the tree, the counters and the eviction heap do not agree."""
        locked = evictable = 0
        for node in self.nodes():
            assert node.parent is not None
            assert node.tokens
            assert len(node.tokens) % self._page_bytes == 0
            assert node.parent.children[node.tokens[: self._page_bytes]] is node
            assert node.locks >= sum(child.locks for child in node.children.values())
            assert node.children or node.locks or node.queued, "an evictable leaf is missing from the heap"
            if node.locks:
                locked += len(node)
            else:
                evictable += len(node)
        assert (locked, evictable) == (self.locked_tokens, self.evictable_tokens)
        entries = [node.serial for _, _, node in self._heap]
        assert len(entries) == len(set(entries)), "a node is queued twice"

    def _descend(self, tokens: bytes, node: Node, offset: int) -> tuple[Node, int]:
        """Follow `tokens` from byte `offset`, at which `node` ends, splitting the node in which they diverge."""
        page = self._page_bytes
        end = len(tokens) - len(tokens) % page
        while offset < end:
            child = node.children.get(tokens[offset : offset + page])
            if child is None:
                break
            if not tokens.startswith(child.tokens, offset):
                shared = self._shared_bytes(child.tokens, tokens, offset)
                return self._split(child, shared), offset + shared
            node = child
            offset += len(child.tokens)
        return node, offset

    def _shared_bytes(self, segment: bytes, tokens: bytes, offset: int) -> int:
        """Length of the common start of `segment` and `tokens[offset:]`, in whole pages."""
        count = min(len(segment), len(tokens) - offset) // TOKEN_BYTES
        ours = np.frombuffer(segment, dtype=np.int32, count=count)
        theirs = np.frombuffer(tokens, dtype=np.int32, count=count, offset=offset)
        different = ours != theirs
        shared = int(different.argmax()) if different.any() else count
        return shared // self.page_size * self._page_bytes

    def _split(self, node: Node, at: int) -> Node:
        """Cut `node` at byte `at`. The upper part is new, so whoever holds `node` still holds the whole path."""
        parent = node.parent
        assert parent is not None
        upper = self._add(node.tokens[:at], parent)  # replaces `node` among the parent's children
        node.tokens = node.tokens[at:]
        node.parent = upper
        upper.children[node.tokens[: self._page_bytes]] = node
        upper.locks = node.locks
        upper.last_access = node.last_access
        return upper

    def _add(self, tokens: bytes, parent: Node) -> Node:
        self._serial += 1
        node = Node(tokens, parent, self._serial)
        parent.children[tokens[: self._page_bytes]] = node
        return node

    def _touch(self, node: Node) -> None:
        # One tick for the whole path: leaves go first, so a parent is never considered before its child.
        self._tick += 1
        step: Node | None = node
        while step is not None:
            step.last_access = self._tick
            step = step.parent

    def _queue(self, node: Node) -> None:
        if not (node.queued or node.children or node.locks or node.parent is None):
            node.queued = True
            heapq.heappush(self._heap, (node.last_access, node.serial, node))
