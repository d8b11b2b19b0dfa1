"""The link between the device's and the host's memory: one transfer at a time, first come first served."""

from __future__ import annotations

from collections import deque

from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.node import Node
from concur_batch.simulator.tiers import TieredCache


class HostLink:
    """Sends what a TieredCache wants sent, and knows until when it is busy.

    `reload_seconds` are those of the copies to the device, `reload_wait_seconds` what prefill batches took longer for
    them, and `write_back_seconds` what steps waited for evicted KV to be stored.
    """

    def __init__(self, cost: CostModel, tiers: TieredCache) -> None:
        self.reload_seconds = 0.0
        self.reload_wait_seconds = 0.0
        self.write_back_seconds = 0.0
        self._cost = cost
        self._tiers = tiers
        self._free_seconds = 0.0
        self._stores: deque[tuple[float, Node]] = deque()  # by when they have arrived

    def send(self, now_seconds: float) -> None:
        """A step has ended, with its loads: what it inserted goes to the host, while the device goes on."""
        self._tiers.finish_loads()
        for node, tokens in self._tiers.unsent:
            end_seconds = self._transfer(tokens * self._cost.store_seconds_per_token, now_seconds)
            self._stores.append((end_seconds, node))
        self._tiers.unsent.clear()

    def settle(self, now_seconds: float) -> None:
        """What has arrived on the host by now may be evicted from the device."""
        while self._stores and self._stores[0][0] <= now_seconds:
            self._tiers.unlock(self._stores.popleft()[1])

    def next_arrival_seconds(self) -> float:
        """When the first node that is on its way to the host arrives there; infinity where none is."""
        return self._stores[0][0] if self._stores else float("inf")

    def step_seconds(self, seconds: float, loaded_tokens: int, now_seconds: float) -> float:
        """How long a step takes which computes for `seconds`, with what it has evicted to the host and what it loads.

        It waits for the former. Loads go layer by layer, and so does what computes on them: once the link is free for
        the first, the longer of the two hides the other.
        """
        begin_seconds = now_seconds
        if self._tiers.written_back_tokens:
            stored_seconds = self._tiers.written_back_tokens * self._cost.store_seconds_per_token
            self._tiers.written_back_tokens = 0
            begin_seconds = self._transfer(stored_seconds, now_seconds)
            self.write_back_seconds += begin_seconds - now_seconds
        end_seconds = begin_seconds + seconds
        if loaded_tokens:
            copy_seconds = loaded_tokens * self._cost.load_seconds_per_token
            loaded_seconds = self._transfer(copy_seconds, begin_seconds)
            end_seconds = max(loaded_seconds - copy_seconds + seconds, loaded_seconds)
            self.reload_seconds += copy_seconds
            self.reload_wait_seconds += end_seconds - (begin_seconds + seconds)
        return end_seconds - now_seconds

    def _transfer(self, seconds: float, now_seconds: float) -> float:
        """Occupy the link for so long; when it is free again."""
        self._free_seconds = max(self._free_seconds, now_seconds) + seconds
        return self._free_seconds
