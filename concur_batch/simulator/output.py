"""What a request will say: the model's reply within the request's own limits, and its text as the tokens come. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from concur_batch.simulator.ask import Sampling
from concur_batch.simulator.model import with_length
from concur_batch.simulator.request import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """An output that has been decided. `matched` is the token or the string that ends it, if nothing else does first.

    `text` is that of all tokens, as a client reads it: without special tokens and without what matched.
    """

    ids: TokenIds
    text: str
    matched: int | str | None


def decide(reply: TokenIds, sampling: Sampling, limit: int, end: int, tokenizer: Tokenizer) -> Output:
    """Cut the reply at `limit` tokens, or where a stop token or string ends it earlier.

    With `ignore_eos` it is stretched to the limit first. Strings are looked for after each token, as SGLang does, so
    that what follows within the same token is lost.
    """
    if sampling.ignore_eos:
        reply = with_length(reply, limit, end)
    ids = reply[:limit]
    matched: int | None = None
    if not sampling.ignore_eos:
        ends = sampling.stop_token_ids | {end}
        place = next((place for place, token in enumerate(ids.tolist()) if token in ends), None)
        if place is not None:
            ids, matched = ids[: place + 1], int(ids[place])
    said = ids if matched is None or sampling.keep_stop else ids[:-1]
    text = tokenizer.decode(said.tolist())
    if not any(stop in text for stop in sampling.stop):
        return Output(ids, text, matched)
    ids = ids[: _tokens_until_stop(ids, sampling.stop, tokenizer)]
    text = tokenizer.decode(ids.tolist())
    stop = next(stop for stop in sampling.stop if stop in text)
    return Output(ids, text[: text.index(stop) + (len(stop) if sampling.keep_stop else 0)], stop)


def _tokens_until_stop(ids: TokenIds, stops: tuple[str, ...], tokenizer: Tokenizer) -> int:
    """The fewest first tokens whose text has a stop string in it."""
    low, high = 0, len(ids)  # never, always
    while high - low > 1:
        middle = (low + high) // 2
        text = tokenizer.decode(ids[:middle].tolist())
        low, high = (low, middle) if any(stop in text for stop in stops) else (middle, high)
    return high


class Speller:
    """The text of an output, as far as its tokens have come: it only ever grows, by whole characters."""

    def __init__(self, output: Output, tokenizer: Tokenizer) -> None:
        self._output = output
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens = 0
        self._text = ""

    def upto(self, tokens: int) -> str:
        """The text of the first `tokens` tokens; no fewer than at the last call."""
        if tokens >= len(self._output.ids):
            return self._output.text
        pieces = [self._text]
        for token in self._output.ids[self._tokens : tokens].tolist():
            pieces.append(self._stream.step(self._tokenizer, token) or "")
        self._tokens = tokens
        self._text = "".join(pieces)
        # The beginning of a stop string is not shown: it is known already where the text will end.
        return self._text[: len(self._output.text)]
