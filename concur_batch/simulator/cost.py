"""How long the simulated GPU takes, in seconds of simulated time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class CostModel:
    """Linear costs of a prefill batch, of a decode step, and of moving KV between device and host.

    The defaults are illustrative: a dense model of 8 billion parameters on one H100, from published peaks and not
    from a measurement. Prefill: 2 x 8.2e9 FLOP a token at 400 TFLOP/s (40 % of the peak) = 41 us. Attention over 36
    layers x 32 heads x 128: 4 x 147,456 FLOP a pair of tokens = 1.5 ns. Decode: 16.4 GB of weights at 2.7 TB/s
    (80 % of the peak) = 6.1 ms a step; 147,456 bytes of KV a token (8 KV heads, bf16) = 55 ns. The cost per request
    stands for sampling and scheduling. `hardware.Deployment.cost_model` makes those of any model on any GPUs.

    A prefill takes at least the reading of the weights that its tokens touch: `weights_seconds`, and of the experts
    of a mixture, which take `experts_seconds` all together, those that any token is sent to; each token goes to
    `expert_share` of them. A decode step has the former in `decode_step_seconds`.
    """

    prefill_seconds_per_token: Seconds = 4.1e-5
    prefill_seconds_per_token_pair: Seconds = 1.5e-9
    decode_step_seconds: Seconds = 6.1e-3
    decode_seconds_per_request: Seconds = 2.0e-5
    decode_seconds_per_kv_token: Seconds = 5.5e-8
    prefill_step_seconds: Seconds = 0.0
    prefill_seconds_per_cached_token: Seconds = 0.0
    weights_seconds: Seconds = 0.0
    experts_seconds: Seconds = 0.0
    expert_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    load_seconds_per_token: Seconds = 0.0
    store_seconds_per_token: Seconds = 0.0

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
        cached_tokens = 0
        pairs = 0.0
        for cached, computed in extends:
            tokens += computed
            cached_tokens += cached
            pairs += computed * (cached + (computed + 1) / 2)
        computing_seconds = (
            self.prefill_seconds_per_token * tokens
            + self.prefill_seconds_per_token_pair * pairs
            + self.prefill_seconds_per_cached_token * cached_tokens
        )
        return self.prefill_step_seconds + max(computing_seconds, self.weights_seconds + self._touched_seconds(tokens))

    def decode_seconds(self, requests: int, kv_tokens: int, steps: int = 1) -> float:
        """`steps` decode steps of the same batch, which reads `kv_tokens` in the first and `requests` more in each."""
        return steps * (
            self.decode_step_seconds
            + self._touched_seconds(requests)
            + self.decode_seconds_per_request * requests
            + self.decode_seconds_per_kv_token * (kv_tokens + requests * (steps - 1) / 2)
        )

    def _touched_seconds(self, tokens: int) -> float:
        """Reading the experts that so many tokens touch, each sent to `expert_share` of them as if by lot."""
        return self.experts_seconds * (1.0 - (1.0 - self.expert_share) ** tokens)
