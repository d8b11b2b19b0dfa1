"""SGLang's estimate of how much of its allowance a running request will use."""

from __future__ import annotations

from collections.abc import Iterable

from concur_batch.simulator.sequence import Sequence

# SGLang 0.5.23's defaults (srt/environ.py).
_INITIAL_RATIO = 0.7
_MIN_RATIO_FACTOR = 0.14
_RATIO_DECAY_STEPS = 600
_RETRACT_DECODE_STEPS = 20


class NewTokenRatio:
    """The share of its remaining allowance that a running request is expected to use.

    It falls with each decode step that goes well and jumps after a retraction.
    """

    def __init__(self, conservativeness: float) -> None:
        self.initial = min(_INITIAL_RATIO * conservativeness, 1.0)
        self.minimum = self.initial * _MIN_RATIO_FACTOR
        self.current = self.initial

    def decay(self, steps: int) -> None:
        fall = (self.initial - self.minimum) / _RATIO_DECAY_STEPS
        self.current = max(self.current - fall * steps, self.minimum)

    def after_retraction(self, kept: Iterable[Sequence]) -> None:
        """From what those who stay have used so far, and a few steps more."""
        used = allowed = 0
        for sequence in kept:
            used += sequence.outputs + _RETRACT_DECODE_STEPS
            allowed += sequence.max_new_tokens
        self.current = min(1.0, used / (allowed + 1))

    def reset(self) -> None:
        self.current = self.initial
