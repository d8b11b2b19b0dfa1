"""Radix tree of cached KV: which token prefixes are resident, which of them are in use, and what goes first.

Token ids are packed: 4 bytes a token (int32), so that comparing a cached segment is one memcmp however long it is.
All sizes in the interface are in tokens. Rules follow SGLang 0.5.23's UnifiedRadixCache: nodes split where
sequences diverge, a lock on a node holds its whole path, and eviction takes whole unlocked leaves, those with the
smallest key of the eviction policy first, until at least what was asked for is free.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from concur_batch.simulator.eviction import EvictionQueue
from concur_batch.simulator.node import EVICTION_KEYS, TOKEN_BYTES, Eviction, Node, unreferenced_first
from concur_batch.simulator.sessions import Sessions


class RadixCache:
    """The tree and its counters: `locked_tokens` + `evictable_tokens` = tokens resident on the device.

    With `tagged`, what belongs to none of its `sessions` is evicted first.
    """

    def __init__(self, page_size: int = 1, eviction: Eviction = "lru", *, tagged: bool = False) -> None:
        self.page_size = page_size
        self.locked_tokens = 0
        self.evictable_tokens = 0
        self.evicted_tokens_total = 0
        self.root = Node(b"", None, 0)
        self.sessions = Sessions(self._fell)
        key = EVICTION_KEYS[eviction]
        self._key = unreferenced_first(key) if tagged else key
        self._queue = EvictionQueue(self._key, _is_device_leaf)
        self._page_bytes = page_size * TOKEN_BYTES
        self._tick = 0
        self._serial = 0

    def match(self, tokens: bytes, length: int | None = None) -> tuple[Node, int]:
        """The longest cached prefix, in whole pages: its last node and its length. Counts as an access.

        Of `tokens`, the first `length` count, or all.
        """
        node, offset = self._descend(tokens, self.root, 0, self._end(tokens, length))
        self._touch(node)
        return node, offset // TOKEN_BYTES

    def insert(
        self,
        tokens: bytes,
        length: int | None = None,
        under: Node | None = None,
        prefix_tokens: int = 0,
        counted_tokens: int = 0,
    ) -> Node:
        """Make the whole pages of `tokens`, or of the first `length`, resident; the node where they end. An access.

        `under` may name a locked node at which the first `prefix_tokens` of `tokens` end: the walk starts there.
        Nodes that end beyond `counted_tokens`, which the same request has inserted before, count a hit.
        """
        end = self._end(tokens, length)
        node, offset = self._descend(tokens, under or self.root, prefix_tokens * TOKEN_BYTES, end)
        self._restore(node)
        if offset < end:
            node = self._add(tokens[offset:end], node)
            self.evictable_tokens += node.size
            self._queue.add(node)
        self._touch(node)
        self._count_hits(node, end // TOKEN_BYTES, counted_tokens)
        return node

    def prefer(self, node: Node, end_tokens: int, at_tokens: int) -> None:
        """Cut the path that ends with `node` at `end_tokens` at its first `at_tokens`, and prefer these to the rest.

        So does SGLang at a prompt's end, that the output's KV can be evicted without the prompt's.
        """
        start_tokens = end_tokens - node.size
        while start_tokens >= at_tokens:
            assert node.parent is not None
            node = node.parent
            start_tokens -= node.size
        if start_tokens + node.size > at_tokens:
            node = self._split(node, (at_tokens - start_tokens) * TOKEN_BYTES)
        self._touch(node, priority=1)

    def resident(self, node: Node) -> tuple[Node, int]:
        """The last node on the device of the path that ends at `node`, and how many of its tokens come after that."""
        return node, 0

    def lock(self, node: Node) -> None:
        """Protect the path that ends at `node` from eviction."""
        step: Node | None = node
        while step is not None:
            if step.locks == 0 and step.on_device:
                self.evictable_tokens -= step.size
                self.locked_tokens += step.size
            step.locks += 1
            step = step.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of the same node."""
        step: Node | None = node
        while step is not None:
            step.locks -= 1
            if step.locks == 0:
                if step.on_device:
                    self.evictable_tokens += step.size
                    self.locked_tokens -= step.size
                if not step.device_children:
                    self._queue.add(step)
            step = step.parent

    def evict(self, tokens: int) -> int:
        """Free unlocked leaves until at least `tokens` are free or none is left; how many were freed."""
        evicted = 0
        while evicted < tokens and (node := self._queue.pop()) is not None:
            evicted += node.size
            self._free(node)
        self.evictable_tokens -= evicted
        self.evicted_tokens_total += evicted
        return evicted

    def clear(self) -> None:
        """Drop everything, which nobody may be using. Counts as no eviction."""
        assert not self.locked_tokens, "the cache is in use"
        self.root = Node(b"", None, 0)
        self.evictable_tokens = 0
        self._queue.clear()
        self.sessions.clear()

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def check_integrity(self) -> None:
        """Raise AssertionError where the tree, the counters and the eviction queue do not agree."""
        locked = evictable = 0
        for node in self.nodes():
            assert node.parent is not None
            assert 0 < node.size == len(node.tokens) // TOKEN_BYTES
            assert len(node.tokens) % self._page_bytes == 0
            assert node.parent.children[node.tokens[: self._page_bytes]] is node
            assert node.locks >= sum(child.locks for child in node.children.values())
            assert node.device_children == sum(child.on_device for child in node.children.values())
            assert node.on_device or node.on_host
            assert node.parent.on_device or not node.on_device
            sessions = node.sessions or {}
            assert node.references == sum(child.references for child in node.children.values()) + len(sessions)
            assert all(node in session.ends and not session.closed for session in sessions)
            if _is_device_leaf(node):
                assert node in self._queue, "an evictable leaf is missing from the queue"
            if node.on_device and node.locks:
                locked += node.size
            elif node.on_device:
                evictable += node.size
        assert (locked, evictable) == (self.locked_tokens, self.evictable_tokens)
        self._queue.check_integrity()

    def _free(self, node: Node) -> None:
        """Take an unlocked leaf's KV from the device: without a host tier it is gone."""
        self._remove(node)

    def _restore(self, node: Node) -> None:
        """The KV of the path that ends at `node` was computed anew: without a host tier all of it is there."""

    def _count_hits(self, node: Node, end_tokens: int, counted_tokens: int) -> None:
        """A request that has inserted `counted_tokens` before has inserted up to `end_tokens`, where `node` ends."""
        while end_tokens > counted_tokens:
            node.hits += 1
            end_tokens -= node.size
            assert node.parent is not None
            node = node.parent

    def _end(self, tokens: bytes, length: int | None) -> int:
        """The byte at which the whole pages of the first `length` tokens end. Nothing is copied to cut them off."""
        size = len(tokens) if length is None else length * TOKEN_BYTES
        return size - size % self._page_bytes

    def _descend(self, tokens: bytes, node: Node, offset: int, end: int) -> tuple[Node, int]:
        """Follow `tokens` from byte `offset`, at which `node` ends, to `end`, splitting where they part."""
        page = self._page_bytes
        while offset < end:
            child = node.children.get(tokens[offset : offset + page])
            if child is None:
                break
            if not tokens.startswith(child.tokens, offset, end):
                shared = self._shared_bytes(child.tokens, tokens, offset, end)
                return self._split(child, shared), offset + shared
            node = child
            offset += len(child.tokens)
        return node, offset

    def _shared_bytes(self, segment: bytes, tokens: bytes, offset: int, end: int) -> int:
        """Length of the common start of `segment` and `tokens[offset:end]`, in whole pages."""
        count = min(len(segment), end - offset) // TOKEN_BYTES
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
        parent.device_children -= 1
        node.keep_from(at)
        node.parent = upper
        upper.children[node.tokens[: self._page_bytes]] = node
        upper.device_children = int(node.on_device)
        upper.on_device, upper.on_host = node.on_device, node.on_host
        upper.locks = node.locks
        upper.hits, upper.priority, upper.references = node.hits, node.priority, node.references
        # As in SGLang, a split refreshes the lower part too, though nobody has asked for it.
        self._tick += 1
        node.last_access = upper.last_access = self._tick
        return upper

    def _add(self, tokens: bytes, parent: Node) -> Node:
        self._serial += 1
        node = Node(tokens, parent, self._serial)
        parent.children[tokens[: self._page_bytes]] = node
        parent.device_children += 1
        return node

    def _remove(self, node: Node) -> None:
        """Take a leaf out of the tree."""
        parent = node.parent
        assert parent is not None
        if node.sessions:
            self.sessions.leaves(node)
        del parent.children[node.tokens[: self._page_bytes]]
        parent.device_children -= node.on_device
        if not parent.device_children:
            self._queue.add(parent)

    def _fell(self, node: Node) -> None:
        """Fewer sessions refer to `node`: it may be evicted sooner."""
        self._queue.fell(node)

    def _touch(self, node: Node, priority: int = 0) -> None:
        # One tick for the whole path: leaves go first, so a parent is never considered before its child.
        self._tick += 1
        step: Node | None = node
        while step is not None:
            step.last_access = self._tick
            if step.priority < priority:
                step.priority = priority
            step = step.parent


def _is_device_leaf(node: Node) -> bool:
    return not (node.device_children or node.locks or node.parent is None or not node.on_device)
