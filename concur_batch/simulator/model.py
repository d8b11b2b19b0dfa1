"""What the simulated engine asks the simulated model, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from concur_batch.simulator.request import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """One assistant turn, up to and with the token that ends it. `text` is None where nobody spelled it out."""

    output_ids: TokenIds
    text: str | None


class Model(Protocol):
    """Says the next turn. Stateless: the same prompt and seed give the same reply."""

    def reply(self, input_ids: TokenIds, seed: int) -> Reply: ...


@dataclass(frozen=True, slots=True)
class ChatTokens:
    """The tokens by which ChatML marks messages."""

    start: int
    end: int
    assistant: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTokens:
        """Raises ValueError where the tokenizer has no ChatML tokens."""
        start, end = tokenizer.token_to_id("<|im_start|>"), tokenizer.token_to_id("<|im_end|>")
        if start is None or end is None:
            raise ValueError("the simulated model needs a tokenizer with the tokens <|im_start|> and <|im_end|>")
        return cls(start, end, tuple(tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids))


def with_length(reply: Reply, tokens: int, end: int) -> Reply:
    """The reply of a model that may not stop before `tokens` tokens: it says the same again and again."""
    said = reply.output_ids[reply.output_ids != end]
    return Reply(np.resize(said if len(said) else reply.output_ids, tokens), None)
