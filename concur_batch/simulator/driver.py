"""The simulated engine on a real clock: runs in an event loop, and sleeps until a request can end, or, while somebody
watches one, until its next token."""

from __future__ import annotations

import asyncio
import itertools
import time
from types import TracebackType
from typing import Self

from concur_batch.simulator.engine import Counters, EngineCore
from concur_batch.simulator.request import Completion, Request, TokenIds
from concur_batch.simulator.sequence import Sequence

# Who watches is not woken more often than this, in real seconds: on a fast clock several tokens come together.
_WATCH_SECONDS = 0.002


class Run:
    """A request in the engine. To be left as a context: before its end, that aborts it."""

    def __init__(self, driver: Driver, name: str, sequence: Sequence, completion: asyncio.Future[Completion]) -> None:
        self.driver = driver
        self.name = name
        self.sequence = sequence
        self.completion = completion
        self.seen = 0
        self.wake: asyncio.Future[None] | None = None

    async def more(self) -> int:
        """Wait until there are more output tokens than at the last call, or for the end; how many there are."""
        if not self.has_news():
            await self.driver.watch(self)
        self.seen = self.driver.core.outputs(self.sequence)
        return self.seen

    def has_news(self) -> bool:
        """Whether `more` need not wait."""
        return self.driver.has_ended(self) or self.driver.core.outputs(self.sequence) > self.seen

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.driver.leave(self)


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
        self._runs: dict[str, Run] = {}
        self._watched: set[Run] = set()
        self._timer: asyncio.Handle | None = None
        self._fires_at = 0.0
        self._serial = itertools.count()

    def submit(
        self,
        rid: str,
        input_ids: TokenIds,
        output_ids: TokenIds,
        max_new_tokens: int,
        ignore_eos: bool,
        session: str | None,
    ) -> Run:
        """Hand in a request, now. Raises RequestRejected."""
        # A rid may come back while its aborted predecessor is still in a step: the core's names are used once.
        name = f"{rid}#{next(self._serial)}#"
        request = Request(name, input_ids, output_ids, max_new_tokens, ignore_eos, session)
        sequence = self.core.submit(request, self.now_seconds())
        run = self._runs[name] = Run(self, name, sequence, self._loop.create_future())
        self._pump()
        return run

    def has_ended(self, run: Run) -> bool:
        """Whether the engine is done with it."""
        return run.name not in self._runs

    async def watch(self, run: Run) -> None:
        """Wait until it has another token, or has ended."""
        run.wake = self._loop.create_future()
        self._watched.add(run)
        self._arm()
        try:
            await run.wake
        finally:
            self._watched.discard(run)

    def leave(self, run: Run) -> None:
        """Abort it, unless it has ended."""
        if self._runs.pop(run.name, None) is not None:
            self.abort(run.name)

    def abort(self, rid_prefix: str) -> None:
        """Abort all requests whose rid starts so; they end with what they have."""
        self._pump()
        self.core.abort(rid_prefix)
        self._pump()

    def close_session(self, name: str) -> None:
        """The engine may give up first what it has cached of it."""
        self._pump()
        self.core.close_session(name)

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
        # The core never runs ahead of the clock: a step that has not ended yet has made no token.
        for completion in self.core.advance(self.now_seconds()):
            run = self._runs.pop(completion.rid, None)
            if run is not None and not run.completion.done():
                run.completion.set_result(completion)
        for run in self._watched:
            if run.has_news() and run.wake is not None and not run.wake.done():
                run.wake.set_result(None)
        self._arm()

    def _arm(self) -> None:
        event = self.core.next_event_seconds()
        if event is None:
            return
        when = self._origin + event / self._time_scale
        if self._watched:
            step = self._origin + self.core.step_end_seconds() / self._time_scale
            when = min(when, max(step, self._loop.time() + _WATCH_SECONDS))
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
