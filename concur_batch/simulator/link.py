"""The link between the device's and the host's memory: one transfer at a time, first come first served."""

from __future__ import annotations

from collections import deque

from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.node import Node


class HostLink:
    """Knows until when it is busy, and which nodes are on their way to the host."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._free_seconds = 0.0
        self._stores: deque[tuple[float, Node]] = deque()  # by when they have arrived

    def store(self, node: Node, tokens: int, now_seconds: float) -> None:
        """Copy `tokens` of `node` to the host behind what is on its way, while the device goes on."""
        end_seconds = self._send(tokens * self._cost.store_seconds_per_token, now_seconds)
        self._stores.append((end_seconds, node))

    def write_back(self, tokens: int, now_seconds: float) -> float:
        """Copy `tokens` to the host while the device waits; when they have arrived."""
        return self._send(tokens * self._cost.store_seconds_per_token, now_seconds)

    def load(self, tokens: int, now_seconds: float) -> tuple[float, float]:
        """Copy `tokens` to the device; when this begins, and when they have arrived."""
        seconds = tokens * self._cost.load_seconds_per_token
        end_seconds = self._send(seconds, now_seconds)
        return end_seconds - seconds, end_seconds

    def take_stored(self, now_seconds: float) -> list[Node]:
        """Those that have arrived on the host since the last call."""
        stored = []
        while self._stores and self._stores[0][0] <= now_seconds:
            stored.append(self._stores.popleft()[1])
        return stored

    def next_arrival_seconds(self) -> float:
        """When the first node that is on its way to the host arrives there; infinity where none is."""
        return self._stores[0][0] if self._stores else float("inf")

    def _send(self, seconds: float, now_seconds: float) -> float:
        self._free_seconds = max(self._free_seconds, now_seconds) + seconds
        return self._free_seconds
