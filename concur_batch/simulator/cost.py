"""How long the simulated GPU takes, in seconds of simulated time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CostModel:
    """Linear costs of a prefill batch and of a decode step.

    The defaults are illustrative: a dense model of 8 billion parameters on one H100, from published peaks and not
    from a measurement. Prefill: 2 x 8.2e9 FLOP a token at 400 TFLOP/s (40 % of the peak) = 41 us. Attention over 36
    layers x 32 heads x 128: 4 x 147,456 FLOP a pair of tokens = 1.5 ns. Decode: 16.4 GB of weights at 2.7 TB/s
    (80 % of the peak) = 6.1 ms a step; 147,456 bytes of KV a token (8 KV heads, bf16) = 55 ns. The cost per request
    stands for sampling and scheduling.
    """

    prefill_seconds_per_token: Seconds = 4.1e-5
    prefill_seconds_per_token_pair: Seconds = 1.5e-9
    decode_step_seconds: Seconds = 6.1e-3
    decode_seconds_per_request: Seconds = 2.0e-5
    decode_seconds_per_kv_token: Seconds = 5.5e-8

    @classmethod
    def zero(cls) -> CostModel:
        """An engine that answers at once, for load tests of what is around it."""
        return cls(0.0, 0.0, 0.0, 0.0, 0.0)

    def prefill_seconds(self, extends: Iterable[tuple[int, int]]) -> float:
        """One prefill batch. `extends`: for each sequence (tokens already cached, tokens to compute).

        A token attends to all before it and to itself, so n new ones after c cached ones make
        n * c + n * (n + 1) / 2 pairs.
        """
        tokens = 0
        pairs = 0.0
        for cached, computed in extends:
            tokens += computed
            pairs += computed * (cached + (computed + 1) / 2)
        return self.prefill_seconds_per_token * tokens + self.prefill_seconds_per_token_pair * pairs

    def decode_seconds(self, requests: int, kv_tokens: int, steps: int = 1) -> float:
        """`steps` decode steps of the same batch, which reads `kv_tokens` in the first and `requests` more in each."""
        return steps * (
            self.decode_step_seconds
            + self.decode_seconds_per_request * requests
            + self.decode_seconds_per_kv_token * (kv_tokens + requests * (steps - 1) / 2)
        )
