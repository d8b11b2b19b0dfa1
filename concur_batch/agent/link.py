"""A host's link to the controller: its agents' events and beats go out, permits come in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from concur_batch.agent.gate import Gate
from concur_batch.control.member import Event, Permit, Spent
from concur_batch.control.rules import Rules
from concur_batch.trace.outbox import Outbox

_BEAT_SECONDS = 0.5


class Link:
    """Made within a running event loop. `controller` is a Ray actor handle, or anything with the same `.remote`s.

    The controller may restart: what it had not acknowledged is told again, and its successor gets a census.
    """

    def __init__(self, host: str, controller: Any, rules: Rules) -> None:
        self._host = host
        self._controller = controller
        self._events: Outbox[Event] = Outbox(self._report)
        self._put = self._acknowledged = 0
        self._incarnation = 0
        self._spent: dict[str, Spent] = {}
        self.gate = Gate(self._queue, rules)

    @property
    def unacknowledged(self) -> int:
        """Events that the controller has not acknowledged yet."""
        return self._put - self._acknowledged

    async def introduce(self) -> None:
        """To a controller that does not know us: at first, or when it was restarted."""
        self._incarnation = await self._controller.incarnation.remote()
        census = self.gate.census()
        await self._controller.introduce.remote(self._host, _this_actor(), census, self._incarnation)

    def permit(self, incarnation: int, permits: Sequence[Permit]) -> None:
        """Take the controller's permits; those of one that has died since are void."""
        if incarnation == self._incarnation:
            self.gate.apply(permits)

    def spend(self, pool: str, spent: Spent) -> None:
        """Add what a turn in a pool has cost to what the next beat tells."""
        self._spent[pool] = self._spent.get(pool, Spent()).plus(spent)

    async def keep_beating(self) -> None:
        """Tell the controller, now and then, what it records but need not know at once."""
        while True:
            try:
                await self.beat()
            except RayError:  # a controller that restarts
                await asyncio.sleep(_BEAT_SECONDS)
            await asyncio.sleep(_BEAT_SECONDS)

    async def beat(self) -> None:
        """Tell what has changed since the last beat. Raises RayError; the next one tells it then."""
        beats = self.gate.take_beats()
        spent, self._spent = self._spent, {}
        told = dict(spent)
        for pool, seconds in self.gate.longest_seconds().items():
            told[pool] = told.get(pool, Spent()).plus(Spent(longest_seconds=seconds))
        try:
            known = await self._controller.beat.remote(self._host, beats, told)
        except RayError:
            self.gate.return_beats(beats)
            for pool, tokens in spent.items():
                self.spend(pool, tokens)
            raise
        if not known:
            await self.introduce()

    async def sent(self) -> None:
        """Wait until the controller has acknowledged all events so far."""
        await self._events.sent()

    async def close(self) -> None:
        """Stop without sending what is left."""
        await self._events.close()

    def _queue(self, event: Event) -> None:
        self._put = self._events.put(event)

    async def _report(self, events: list[Event]) -> None:
        if not await self._controller.report.remote(self._host, events):
            await self.introduce()
        self._acknowledged += len(events)


def _this_actor() -> Any:
    import ray

    return ray.get_runtime_context().current_actor
