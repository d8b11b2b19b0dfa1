"""A model without a script, for loads of thousands of agents: it costs microseconds a turn."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from tokenizers import Tokenizer

from concur_batch.simulator.actions import Call, write_turn
from concur_batch.simulator.conversation import ActionFormat
from concur_batch.simulator.model import ChatTokens, Function
from concur_batch.simulator.request import TokenIds

_WORD = re.compile(r"Ġ[a-z]{3,}")  # as byte-level tokenizers write a word after a space
_DECK = 65_536  # words drawn beforehand; a turn takes a run of them


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SyntheticScript:
    """Every agent calls `work` for a seeded number of turns, then submits; the ranges include both ends.

    `output_words` is how many words a turn says before its call, one token each.
    """

    turns: tuple[int, int] = (5, 5)
    output_words: tuple[int, int] = (8, 24)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in (("turns", self.turns), ("output_words", self.output_words)):
            if not 0 <= low <= high:
                raise ValueError(f"`{name}` must be a range of counts, low to high, not {low} to {high}")


class SyntheticModel:
    """A Model whose turns depend on the prompt's first messages, the number of turns so far and the seed."""

    def __init__(self, script: SyntheticScript, tokenizer: Tokenizer, form: ActionFormat) -> None:
        self._script = script
        self._form = form
        self._chat = ChatTokens.of(tokenizer)
        self._tokenizer = tokenizer
        words = sorted(index for token, index in tokenizer.get_vocab().items() if _WORD.fullmatch(token))
        if not words:
            raise ValueError("the synthetic model needs a byte-level tokenizer with words in its vocabulary")
        rng = np.random.default_rng(script.seed)
        self._deck = rng.choice(np.array(words, dtype=np.int32), _DECK + script.output_words[1])
        self._affixes = lru_cache(maxsize=4096)(self._make_affixes)

    def reply(self, input_ids: TokenIds, seed: int, offered: Sequence[Function] = ()) -> TokenIds:
        turns = self._turn_starts(input_ids)
        opening = input_ids[: turns[0]] if len(turns) else input_ids
        who = zlib.crc32(opening.tobytes(), seed & 0xFFFF_FFFF) ^ self._script.seed
        said = max(0, len(turns) - 1)  # the last one is open: it is being said now
        total = random.Random(who).randint(*self._script.turns)
        draw = random.Random(who * 1_000_003 + said)
        start, words = draw.randrange(_DECK), draw.randint(*self._script.output_words)
        head, tail = self._affixes(said + 1 if said < total else 0)
        return np.concatenate((head, self._deck[start : start + words], tail))

    def _turn_starts(self, input_ids: TokenIds) -> TokenIds:
        """Where assistant messages begin."""
        marker = self._chat.assistant
        starts = np.flatnonzero(input_ids == marker[0])
        starts = starts[starts <= len(input_ids) - len(marker)]
        for offset, token in enumerate(marker[1:], start=1):
            starts = starts[input_ids[starts + offset] == token]
        return starts.astype(np.int32)

    def _make_affixes(self, step: int) -> tuple[TokenIds, TokenIds]:
        """What stands before and after the words of a turn: call number `step`, or the end where it is 0."""
        call = Call("work", {"step": step}) if step else Call("submit", {"answer": "done"})
        if self._form == "bash" and step:
            call = Call("bash", {"command": f"work {step}"})
        head, _, tail = write_turn(self._form, "|", [call]).partition("|")
        ids = [self._tokenizer.encode(text, add_special_tokens=False).ids for text in (head, tail)]
        return np.array(ids[0], dtype=np.int32), np.array([*ids[1], self._chat.end], dtype=np.int32)
