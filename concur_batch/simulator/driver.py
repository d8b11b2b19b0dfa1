"""The simulated engine on a real clock: runs in an event loop, and sleeps until a request can end."""

from __future__ import annotations

import asyncio
import itertools
import time

from concur_batch.simulator.engine import Counters, EngineCore
from concur_batch.simulator.request import Completion, Request, TokenIds


class Driver:
    """Turns the core's clock: `time_scale` simulated seconds pass in a real one.

    All work is done in `_pump`, on a call or a timer: a request costs a future and no task.
    """

    def __init__(self, core: EngineCore, time_scale: float) -> None:
        self.core = core
        self._time_scale = time_scale
        self._loop = asyncio.get_running_loop()
        self._origin = self._loop.time()
        self._wall_origin = time.time()
        self._pending: dict[str, asyncio.Future[Completion]] = {}
        self._timer: asyncio.Handle | None = None
        self._fires_at = 0.0
        self._serial = itertools.count()

    async def generate(
        self, rid: str, input_ids: TokenIds, output_ids: TokenIds, max_new_tokens: int, ignore_eos: bool
    ) -> Completion:
        """Run one request to its end; cancelling the call aborts it. Raises RequestRejected."""
        # A rid may come back while its aborted predecessor is still in a step: the core's names are used once.
        name = f"{rid}#{next(self._serial)}#"
        self.core.submit(Request(name, input_ids, output_ids, max_new_tokens, ignore_eos), self.now_seconds())
        future: asyncio.Future[Completion] = self._loop.create_future()
        self._pending[name] = future
        self._pump()
        try:
            return await future
        except asyncio.CancelledError:
            self._pending.pop(name, None)
            self.abort(name)
            raise

    def abort(self, rid_prefix: str) -> None:
        """Abort all requests whose rid starts so; their calls return with what they have."""
        self._pump()
        self.core.abort(rid_prefix)
        self._pump()

    def counters(self) -> Counters:
        """The engine's counters as of now."""
        self._pump()
        return self.core.counters()

    def flush_cache(self) -> bool:
        """Drop the cache, unless requests are in progress; whether it was dropped."""
        self._pump()
        return self.core.flush_cache()

    def now_seconds(self) -> float:
        """The engine's time."""
        return (self._loop.time() - self._origin) * self._time_scale

    def wall_seconds(self, engine_seconds: float) -> float:
        """An engine's time as seconds since the epoch."""
        return self._wall_origin + engine_seconds / self._time_scale

    def real_seconds(self, engine_seconds: float) -> float:
        """A duration on the engine's clock as it passes for those outside."""
        return engine_seconds / self._time_scale

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pump(self) -> None:
        for completion in self.core.advance(self.now_seconds()):
            future = self._pending.pop(completion.rid, None)
            if future is not None and not future.done():
                future.set_result(completion)
        self._arm()

    def _arm(self) -> None:
        event = self.core.next_event_seconds()
        if event is None:
            return
        when = self._origin + event / self._time_scale
        if self._timer is not None:
            if self._fires_at <= when:
                return  # it fires first, and arms the next
            self._timer.cancel()
        # Kept beside the timer: uvloop makes no TimerHandle for a moment that has passed.
        self._fires_at = when
        self._timer = self._loop.call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._pump()
