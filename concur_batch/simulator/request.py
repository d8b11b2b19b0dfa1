"""What goes into the simulated engine and what comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]
FinishReason = Literal["stop", "length", "abort"]


class RequestRejected(ValueError):
    """The engine cannot take the request, whatever its load; the message is the one SGLang gives."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A generation. `output_ids` is what the model will say, up to its own end: decided beforehand.

    With `ignore_eos` the output is exactly `max_new_tokens` long (where the pool allows it), so `output_ids` must
    reach that far. Requests of one history name the same `session`, for an engine that heeds it.
    """

    rid: str
    input_ids: TokenIds
    output_ids: TokenIds
    max_new_tokens: int
    ignore_eos: bool = False
    session: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """A finished generation. Times are seconds of the engine's clock; None for what was never reached.

    `cached_tokens` are the prefix tokens that the first attempt found on the device, as SGLang counts them, and
    `host_cached_tokens` those that it loaded from the host.
    """

    rid: str
    output_ids: TokenIds
    finish_reason: FinishReason
    message: str | None
    prompt_tokens: int
    cached_tokens: int
    retractions: int
    arrival_seconds: float
    scheduled_seconds: float | None
    first_token_seconds: float | None
    end_seconds: float
    host_cached_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        return len(self.output_ids)
