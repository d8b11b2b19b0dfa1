"""How fast an engine prefills. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# A prefill that takes longer than a period is told when it ends.
_SPAN_SECONDS = 5.0
# Of the peak, from one period to the next. An engine becomes no slower, but long histories cost more a token than the
# short ones of the beginning: half of it after some twenty minutes of one-second periods.
_KEPT = 0.9995
# A request that computed fewer says more of clocks and batches than of the engine.
_FEWEST_TOKENS = 64


def request_rate(computed_tokens: int, seconds: float | None) -> float:
    """Tokens a second of one request's prefill; 0 where it tells nothing.

    Those of one batch all take as long as the batch, so a request seldom shows the whole rate.
    """
    return computed_tokens / seconds if seconds and computed_tokens >= _FEWEST_TOKENS else 0.0


@dataclass(slots=True)
class PrefillRate:
    """The fastest of what single requests tell and of what the engine has computed over some seconds: it decodes beside
    it, and waits for tools. Old peaks fade."""

    tokens_per_second: float = 0.0
    _periods: deque[tuple[float, int]] = field(default_factory=deque)  # the end, and the tokens computed in it

    def add(self, now_seconds: float, computed_tokens: int, fastest_request: float) -> float:
        """End a period; `fastest_request`: in tokens a second. The share of these seconds that it has prefilled for."""
        self._periods.append((now_seconds, computed_tokens))
        while now_seconds - self._periods[0][0] > _SPAN_SECONDS and len(self._periods) > 2:
            self._periods.popleft()
        span_seconds = now_seconds - self._periods[0][0]
        mean = sum(tokens for _, tokens in list(self._periods)[1:]) / span_seconds if span_seconds > 0 else 0.0
        self.tokens_per_second = max(mean, fastest_request, self.tokens_per_second * _KEPT)
        return mean / self.tokens_per_second if self.tokens_per_second else 0.0
