"""How fast an engine prefills. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# A prefill that takes longer than a period is told when it ends.
_SPAN_SECONDS = 5.0
# Of the peak, from one period to the next. An engine becomes no slower, but long histories cost more a token than the
# short ones of the beginning: half of it after some twenty minutes of one-second periods.
_KEPT = 0.9995


@dataclass(slots=True)
class PrefillRate:
    """From the tokens that the engine has computed each period: the most over some seconds, since it decodes beside it,
    and waits for tools. Old peaks fade."""

    tokens_per_second: float = 0.0
    _periods: deque[tuple[float, int]] = field(default_factory=deque)  # the end, and the tokens computed in it

    def add(self, now_seconds: float, computed_tokens: int) -> None:
        """End a period."""
        self._periods.append((now_seconds, computed_tokens))
        while now_seconds - self._periods[0][0] > _SPAN_SECONDS and len(self._periods) > 2:
            self._periods.popleft()
        span_seconds = now_seconds - self._periods[0][0]
        if span_seconds > 0:
            now = sum(tokens for _, tokens in list(self._periods)[1:]) / span_seconds
            self.tokens_per_second = max(now, self.tokens_per_second * _KEPT)
