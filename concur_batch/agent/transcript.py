"""An agent's history as the token ids that the engine saw and made, and the accounts of what was computed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from concur_batch.agent.template import Message, Tools

if TYPE_CHECKING:
    from concur_batch.agent.encoding import TokenIds, Tokenizer


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """What became of a prompt's tokens that no cache gave; with the cached ones they sum to the prompt."""

    first: int  # never computed for this agent before
    recomputed: int  # computed before, evicted since, computed again
    rounding: int  # computed before, and again since a cache keeps whole pages only

    @property
    def computed(self) -> int:
        """All of them."""
        return self.first + self.recomputed + self.rounding


def account(known_tokens: int, input_tokens: int, device: int, host: int, storage: int, page_size: int) -> TurnTokens:
    """Split a prompt of `input_tokens` by what became of it.

    `known_tokens` of its beginning have KV that was computed, or found cached, for this agent before; `device`, `host`
    and `storage` are the tokens found in each tier of the cache this time, `page_size` is the cache's granularity.
    A cache could have kept the whole pages of what is known: those of them that it did not give are recomputed, the
    rest of what is known is rounding. A hit beyond what is known (a prompt that agents share) is just cached.

    Raises ValueError where the engine tells more cached tokens than the prompt has.
    """
    cached = device + host + storage
    if min(device, host, storage) < 0 or cached > input_tokens:
        raise ValueError(f"cached tokens {device} + {host} + {storage} do not fit a prompt of {input_tokens} tokens")
    known = min(known_tokens, input_tokens)
    reusable = known // page_size * page_size
    return TurnTokens(
        first=input_tokens - max(known, cached),
        recomputed=max(0, reusable - cached),
        rounding=max(0, known - max(cached, reusable)),
    )


class Transcript:
    """One agent's history.

    `start`, then for each turn: send `ids`, `account` for what the engine tells, `generated`, `append` the ids of the
    observation. The history only ever grows; text is derived from it, never the other way round: a history that is
    tokenized anew has other ids and misses the cache. Where the template would rewrite earlier turns (see
    `increment.rewriting`), the history keeps what the engine really saw.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._buffer = np.empty(1024, dtype=np.int32)
        self._length = 0
        self._taken = 0  # up to where `take_delta` has told of
        self._unseen = 0  # tokens that the engine has counted beyond our estimate of the history
        self._increments = tokenizer.increments(None)
        self.known_tokens = 0
        """Tokens at the history's beginning whose KV was computed, or found cached, for this agent."""

    @property
    def ids(self) -> TokenIds:
        """The whole history: a read-only view, not a copy, which later growth leaves as it is."""
        return self._view(0)

    @property
    def tokens(self) -> int:
        """The history's length; where its ids are estimates, by the engine's own count as far as it has told."""
        return self._length + self._unseen

    def start(self, messages: Sequence[Message], tools: Tools | None) -> None:
        """Begin with the prompt of `messages` and the opening of the first turn. Raises TemplateError."""
        self.begin(tools)
        self.extend(self._tokenizer.encode_prompt(messages, tools))

    def begin(self, tools: Tools | None) -> None:
        """Begin a history whose ids are known already, to `extend` it by: `tools` are those of its prompt."""
        self._increments = self._tokenizer.increments(tools)

    def take_delta(self) -> TokenIds:
        """What the template and observations added since the last generation: the turn's `input_delta_ids`."""
        delta = self._view(self._taken)
        self._taken = self._length
        return delta

    def account(
        self, input_tokens: int, device: int | None, host: int, storage: int, page_size: int
    ) -> TurnTokens | None:
        """Split this turn's prompt by what became of it (see the function `account`); before `generated`.

        None where `device` is: an engine that does not tell its hits leaves it unknown.
        """
        return None if device is None else account(self.known_tokens, input_tokens, device, host, storage, page_size)

    def generated(self, output_ids: Sequence[int], told_tokens: int | None = None) -> None:
        """Add what the engine sampled. `told_tokens` is the whole history's length by the engine, where the ids are
        estimates.

        Known is now all but the last token: its KV is computed only when it is part of a prompt.
        """
        self.extend(output_ids)
        self._taken = self._length
        self._unseen = 0 if told_tokens is None else told_tokens - self._length
        self.known_tokens = self.tokens - bool(len(output_ids))

    def encode_observation(self, messages: Sequence[Message]) -> TokenIds:
        """Ids of the end of the assistant's turn, the observation and the next opening, for `append`.

        Changes nothing and may run in a thread. Raises TemplateError.
        """
        return self._tokenizer.encode_increment(messages, self._increments)

    def append(self, ids: Sequence[int] | TokenIds) -> None:
        """Add the ids of an observation. Where the model has ended its turn itself, the template's end of the turn is
        left out, also if the model chose another of its end tokens."""
        closing = self._tokenizer.closing_ids
        ended = self._length > 0 and int(self._buffer[self._length - 1]) in self._tokenizer.eos_ids
        if ended and closing and list(ids[: len(closing)]) == closing:
            ids = ids[len(closing) :]
        self.extend(ids)

    def observe(self, messages: Sequence[Message]) -> None:
        """Add an observation's messages. Raises TemplateError."""
        self.append(self.encode_observation(messages))

    def extend(self, ids: Sequence[int] | TokenIds) -> None:
        """Add ids as they are: of a prompt or an observation that is known in ids already."""
        length = self._length + len(ids)
        if length > len(self._buffer):
            # A new buffer, so that views of the old one, which the engine's client may hold, stay what they are.
            grown = np.empty(max(length, 2 * len(self._buffer)), dtype=np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : length] = ids
        self._length = length

    def _view(self, start: int) -> TokenIds:
        view = self._buffer[start : self._length]
        view.flags.writeable = False
        return view
