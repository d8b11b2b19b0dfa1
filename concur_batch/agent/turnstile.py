"""Fairness on one event loop: of a crowd that could all go on at once, only a few do in each turn of the loop.

Replies and grants come in bursts. Without this, hundreds of agents would parse, encode and send in one turn of the
loop, and timers, new replies and the controller's pushes would wait for all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

# At half a millisecond an agent, a turn of the loop stays well under 10 ms.
_MOST_PER_TURN = 8
# An agent with a history of 60,000 tokens takes several milliseconds: longer turns let fewer through.
_TURN_SECONDS = 0.01


class Turnstile:
    """First come, first served."""

    def __init__(self) -> None:
        self._per_turn = _MOST_PER_TURN
        self._passed = 0
        self._turn_seconds = 0.0  # when the present turn began
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def enter(self) -> None:
        """Go on now, or in one of the next turns of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._turn_seconds = time.monotonic()
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._passed < self._per_turn and not self._waiting:
            self._passed += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _next_turn(self) -> None:
        now_seconds = time.monotonic()
        long = now_seconds - self._turn_seconds > _TURN_SECONDS
        self._per_turn = max(1, self._per_turn // 2) if long else min(_MOST_PER_TURN, self._per_turn + 1)
        self._turn_seconds = now_seconds
        self._passed = 0
        self._scheduled = False
        while self._waiting and self._passed < self._per_turn:
            place = self._waiting.popleft()
            if not place.done():  # a cancelled agent leaves its place
                place.set_result(None)
                self._passed += 1
        if self._waiting or self._passed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)
