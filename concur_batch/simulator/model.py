"""What the simulated engine asks the simulated model, and what it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from concur_batch.simulator.request import TokenIds

Function = Mapping[str, Any]
"""A function that a request offers, as OpenAI describes one: `name`, `description`, `parameters` (a JSON schema)."""


class Model(Protocol):
    """Says the next turn: its tokens, up to and with the one that ends it.

    Stateless: the same arguments give the same reply. `offered` are functions that it may call now; models that go by
    a script of their own need none.
    """

    def reply(self, input_ids: TokenIds, seed: int, offered: Sequence[Function] = ()) -> TokenIds: ...


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


def with_length(output_ids: TokenIds, tokens: int, end: int) -> TokenIds:
    """The reply of a model that may not stop before `tokens` tokens: it says the same again and again."""
    said = output_ids[output_ids != end]
    return np.resize(said if len(said) else output_ids, tokens)
