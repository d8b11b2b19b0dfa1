"""Token ids read back as text, control tokens shown: for people, without the chat template that prompts are made by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from concur_batch.agent.encoding import TokenizerError

# How SentencePiece's vocabularies write a space. Decoding a single token would drop it.
_SPACE = "▁"


class Vocabulary:
    """That of a model directory's tokenizer.json. Raises TokenizerError."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{directory}: no tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{path}: not a tokenizer of the `tokenizers` library: {error}") from error

    def text(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def piece(self, token: int) -> str:
        """One token's text, as the vocabulary writes it where it is no whole character; "" for an unknown id."""
        written = self._tokenizer.id_to_token(token) or ""
        text = self.text([token])
        return written if "\ufffd" in text or written.startswith(_SPACE) else text
