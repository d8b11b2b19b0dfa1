"""A node of the radix tree, and the order in which nodes are evicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from concur_batch.simulator.sessions import Session

Eviction = Literal["lru", "lfu", "slru", "priority"]
# What is evicted first has the smallest key. Of a node it never falls, but where a session ends.
EvictionKey = tuple[int, ...]

TOKEN_BYTES = 4
# SGLang 0.5.23's default (srt/mem_cache/evict_policy.py): a segment that so many requests have inserted is protected.
_SLRU_PROTECTED_HITS = 2


def pack(ids: NDArray[np.integer]) -> bytes:
    """Token ids as the tree stores them."""
    return np.ascontiguousarray(ids, dtype=np.int32).tobytes()


class Node:
    """A run of tokens that follows its parent's run.

    `locks` counts who uses it. Its KV is `on_device`, `on_host` or both (without a host tier always just on the
    device), and no node is on the device whose parent is not. `hits` counts the requests that have inserted it.
    `sessions` mark it as the end of a history, and `references` counts such marks on it and below it.
    """

    __slots__ = (
        *("children", "device_children", "hits", "last_access", "locks", "on_device", "on_host", "parent", "priority"),
        *("references", "serial", "sessions", "size", "tokens"),
    )

    def __init__(self, tokens: bytes, parent: Node | None, serial: int) -> None:
        self.tokens = tokens
        self.size = len(tokens) // TOKEN_BYTES
        self.parent = parent
        self.children: dict[bytes, Node] = {}  # by the child's first page
        self.device_children = 0  # how many of them are on the device
        self.on_device = True
        self.on_host = False
        self.locks = 0
        self.last_access = 0
        self.hits = 0
        self.priority = 0
        self.serial = serial
        self.references = 0
        self.sessions: dict[Session, None] | None = None  # most nodes are no end

    def keep_from(self, at: int) -> None:
        """Only the tokens from byte `at` on stay in it."""
        self.tokens = self.tokens[at:]
        self.size = len(self.tokens) // TOKEN_BYTES


def _lru(node: Node) -> EvictionKey:
    return (node.last_access,)


def _lfu(node: Node) -> EvictionKey:
    return (node.hits, node.last_access)


def _slru(node: Node) -> EvictionKey:
    return (node.hits >= _SLRU_PROTECTED_HITS, node.last_access)


def _priority(node: Node) -> EvictionKey:
    return (node.priority, node.last_access)


def unreferenced_first(key: Callable[[Node], EvictionKey]) -> Callable[[Node], EvictionKey]:
    """The order of `key`, among nodes that as many sessions refer to: those with the fewest go first."""
    return lambda node: (node.references, *key(node))


EVICTION_KEYS: dict[Eviction, Callable[[Node], EvictionKey]] = {
    "lru": _lru,
    "lfu": _lfu,
    "slru": _slru,
    "priority": _priority,
}
