"""A request's life inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from concur_batch.simulator.config import CLIP_NEW_TOKENS
from concur_batch.simulator.node import Node, pack
from concur_batch.simulator.request import Request
from concur_batch.simulator.sessions import Session


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with its progress.

    KV rows 0..`prefix_tokens` lie in the radix tree up to `node`, locked; rows `prefix_tokens`..`kv_tokens` are the
    sequence's own. The newest output token has no row yet: the next decode step computes it. Until it is admitted,
    `host_node` ends the prefix that is cached on any tier: its last `host_tokens` would have to be loaded.
    """

    request: Request
    arrival_seconds: float
    max_new_tokens: int  # clipped to what the engine can hold
    session: Session | None = None
    input_tokens: int = field(init=False)
    output_limit: int = field(init=False)  # outputs after which it is done
    outputs: int = 0
    kv_tokens: int = 0
    prefix_tokens: int = 0
    node: Node | None = None
    host_node: Node | None = None
    host_tokens: int = 0
    published_tokens: int = 0  # what it has put into the tree since it was admitted
    attempts: int = 0  # admissions
    cached_tokens: int = 0  # of the first attempt, on the device
    host_cached_tokens: int = 0
    aborting: bool = False
    outcome: Literal["done", "abort"] = "done"
    message: str | None = None
    scheduled_seconds: float | None = None
    first_token_seconds: float | None = None
    _tokens: bytes | None = None

    def __post_init__(self) -> None:
        self.input_tokens = len(self.request.input_ids)
        self.output_limit = min(len(self.request.output_ids), self.max_new_tokens)

    @property
    def tokens(self) -> bytes:
        """Prompt and whole output, packed: once it is looked at, as thousands may wait."""
        if self._tokens is None:
            self._tokens = pack(self.request.input_ids) + pack(self.request.output_ids)
        return self._tokens

    @property
    def filled_tokens(self) -> int:
        """What a prefill must make resident: the prompt, and after a retraction the outputs so far."""
        return self.input_tokens + self.outputs

    @property
    def allowance(self) -> int:
        """Tokens that it may still generate, as far as SGLang looks ahead."""
        return min(self.max_new_tokens - self.outputs, CLIP_NEW_TOKENS)

    @property
    def remaining_outputs(self) -> int:
        return self.output_limit - self.outputs
