"""A model that answers anybody: for trying clients that bring no script. Its words are drawn, and say so."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from tokenizers import Tokenizer

from concur_batch.simulator.actions import Call, write_turn
from concur_batch.simulator.model import Function
from concur_batch.simulator.request import TokenIds

_WORD = re.compile(r"[Ġ▁][a-z]{3,}")  # as byte-level and SentencePiece tokenizers write a word after a space
_OPENING = "This answer is simulated:"
_EXAMPLES: Mapping[str, Any] = {
    "string": "simulated", "integer": 1, "number": 1.0, "boolean": True, "array": [], "null": None,
}  # fmt: skip


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class ChatScript:
    """`output_words`: how many words an answer has after its opening, one token each; both ends included."""

    output_words: tuple[int, int] = (16, 64)
    seed: int = 0

    def __post_init__(self) -> None:
        low, high = self.output_words
        if not 0 <= low <= high:
            raise ValueError(f"`output_words` must be a range of counts, low to high, not {low} to {high}")


class ChatModel:
    """A Model that calls the first function it is offered, and else says words, drawn by the prompt and the seed."""

    def __init__(self, script: ChatScript, tokenizer: Tokenizer, end: int) -> None:
        self._script = script
        self._tokenizer = tokenizer
        self._end = end
        words = sorted(index for token, index in tokenizer.get_vocab().items() if _WORD.fullmatch(token))
        if not words:
            raise ValueError("no words in the tokenizer's vocabulary; give one that is byte-level or SentencePiece")
        self._words = np.array(words, dtype=np.int32)
        self._opening = self._encode(_OPENING)

    def reply(self, input_ids: TokenIds, seed: int, offered: Sequence[Function] = ()) -> TokenIds:
        if offered:
            arguments = example(offered[0].get("parameters"))
            call = Call(offered[0]["name"], arguments if isinstance(arguments, dict) else {})
            said = self._encode(write_turn("hermes", "", [call]))
        else:
            draw = np.random.default_rng((zlib.crc32(input_ids.tobytes()), seed & 0xFFFF_FFFF, self._script.seed))
            low, high = self._script.output_words
            said = np.concatenate((self._opening, draw.choice(self._words, draw.integers(low, high + 1))))
        return np.append(said, np.int32(self._end))

    def _encode(self, text: str) -> TokenIds:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int32)


def example(schema: Any) -> Any:
    """A value that a JSON schema of the usual kind allows: an object has the properties that it must have."""
    if not isinstance(schema, Mapping):
        return "simulated"
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties, required = schema.get("properties"), schema.get("required")
        known = properties if isinstance(properties, Mapping) else {}
        return {str(name): example(known.get(name)) for name in (required if isinstance(required, list) else ())}
    if kind in ("integer", "number") and "minimum" in schema:
        return schema["minimum"]
    return _EXAMPLES.get(kind, "simulated")
