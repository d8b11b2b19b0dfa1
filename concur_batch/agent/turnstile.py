"""Fairness on one event loop: of a crowd that could all go on at once, only a few do in each turn of the loop.

Replies and grants come in bursts. Without this, hundreds of agents would parse, encode and send in one turn of the
loop, and timers, new replies and the controller's pushes would wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque

# At half a millisecond an agent, a turn of the loop stays well under 10 ms.
_PER_TURN = 8


class Turnstile:
    """First come, first served."""

    def __init__(self) -> None:
        self._passed = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def enter(self) -> None:
        """Go on now, or in one of the next turns of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._passed < _PER_TURN and not self._waiting:
            self._passed += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _next_turn(self) -> None:
        self._passed = 0
        self._scheduled = False
        while self._waiting and self._passed < _PER_TURN:
            place = self._waiting.popleft()
            if not place.done():  # a cancelled agent leaves its place
                place.set_result(None)
                self._passed += 1
        if self._waiting or self._passed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)
