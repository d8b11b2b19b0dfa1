"""Text to token ids and back, such that text which only quotes a control token never becomes one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from concur_batch.agent.increment import Increments, closing
from concur_batch.agent.template import ChatTemplate, Message, Tools

# Tags that actions are made of: kept in decoded text even where a tokenizer calls them special.
_ACTION_TAGS = frozenset({"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"})

# Stands in rendered text for a piece of content by its number; a private-use character is at both ends.
_FENCE = "\U0010fffd"
_HIDDEN = re.compile(f"{_FENCE}([0-9]+){_FENCE}")

_EVERYTHING = re.compile(r"(?s).+")
_SURROGATE = re.compile("[\ud800-\udfff]")


TokenIds = npt.NDArray[np.int32]


class _Piece(NamedTuple):
    """A rendered text, encoded."""

    ids: TokenIds
    controls: int  # how many of them are control tokens


_Render = Callable[[Sequence[Message]], str]
_Encode = Callable[[str], _Piece]


class TokenizerError(ValueError):
    """The tokenizer's files cannot be used; the message is one line."""


class Tokenizer:
    """A Hugging Face tokenizer and its chat template.

    `definition` is the text of tokenizer.json; `end_tokens` are the tokens, by name or id, that end a turn, beside the
    one that the template closes an assistant's turn with.
    A *control token* is an added token that is special, or that the chat template writes: only the template may
    put one into a prompt. (Other added tokens, such as runs of spaces, are ordinary vocabulary.)

    Safe to use from several threads. Raises TokenizerError, or TemplateError where the template cannot hold a dialogue.
    """

    def __init__(self, definition: str, template: ChatTemplate, end_tokens: Iterable[str | int]) -> None:
        try:
            fields = json.loads(definition)
            added = {token["content"]: token for token in fields["added_tokens"]}
            control = {
                text for text, token in added.items() if token["special"] or (text.strip() and text in template.source)
            }
            for text, token in added.items():
                token["special"] = token["special"] and text not in _ACTION_TAGS
            self._markup = tokenizers.Tokenizer.from_str(json.dumps(fields))
            for text in control:
                added[text]["special"] = True
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(fields))
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"not a tokenizer of the `tokenizers` library: {error}") from error
        for tokenizer in (self._markup, self._plain):
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._plain.encode_special_tokens = True  # that is: as text
        self.template = template
        # The library numbers added tokens itself; the ids of the file do not count.
        self.control_ids = frozenset(map(self._id, control))
        longest_first = [re.escape(text) for text in sorted(control, key=len, reverse=True)]
        self._control = re.compile("|".join(longest_first) or "(?!)")
        self._quoted = re.compile("|".join([*longest_first, _FENCE]))
        cuts = [re.escape(text) for text in control if not (added[text]["lstrip"] or added[text]["single_word"])]
        self._cut = re.compile("|".join(cuts) or "(?!)")
        self._head: tuple[str, _Piece] | None = None
        self._increments: dict[str, Increments] = {}

        closing_text = closing(template)
        closer = re.match(rf"\s*({self._control.pattern})", closing_text)
        self.eos_ids = frozenset(map(self._id, [*end_tokens, *([closer[1]] if closer else [])]))
        # What the template writes up to its end of an assistant's turn; empty where it has none. Not to be written
        # after a generation that ended itself.
        self.closing_ids = self.encode(closer[0]) if closer else []

    def encode(self, text: str) -> list[int]:
        """Token ids of a template's text; control tokens in it are recognized. Nothing is added around it."""
        return _encode(self._markup, text)

    def encode_content(self, text: str) -> list[int]:
        """Token ids of a message's text, never a control token among them; they decode to the same text."""
        ids = _encode(self._plain, text)
        if self.control_ids.isdisjoint(ids):
            return ids
        # The model's own vocabulary has the control token and arrives at it: part the text until it does not.
        if len(text) == 1:
            return [token for token in ids if token not in self.control_ids]
        middle = len(text) // 2
        return self.encode_content(text[:middle]) + self.encode_content(text[middle:])

    def cut(self, text: str) -> list[str]:
        """A template's text in parts, of which each but the first begins with a control token. Nothing is merged across
        that: `encode` gives for the parts, one after the other, what it gives for the whole."""
        starts = [match.start() for match in self._cut.finditer(text)]
        return [text[start:end] for start, end in pairwise([0, *starts, len(text)])]

    def encode_prompt(self, messages: Sequence[Message], tools: Tools | None) -> TokenIds:
        """Token ids of a first prompt, with the opening of the assistant's turn. Raises TemplateError.

        Agents' prompts begin alike (the system prompt, the tools): what they share is encoded once.
        """
        return self._encode_chat(
            messages, lambda shown: self.template.render(shown, tools, generation_prompt=True), self._encode_after_head
        )

    def encode_increment(self, messages: Sequence[Message], increments: Increments) -> TokenIds:
        """Token ids of the increment for an observation's `messages`. Raises TemplateError."""
        return self._encode_chat(messages, increments.text, self._encode_piece)

    def ordinary_ids(self) -> TokenIds:
        """The ids of all tokens but the added ones, in order."""
        added = self._markup.get_added_tokens_decoder()
        return _array([token for token in sorted(self._markup.get_vocab().values()) if token not in added])

    def increments(self, tools: Tools | None) -> Increments:
        """The template's increments under `tools`, one object for all agents that have the same."""
        key = json.dumps(tools)
        if key not in self._increments:
            self._increments[key] = Increments(self.template, tools)
        return self._increments[key]

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD. The tags of actions are never skipped."""
        return self._markup.decode(ids, skip_special_tokens=skip_special)

    def _encode_chat(self, messages: Sequence[Message], render: _Render, encode: _Encode) -> TokenIds:
        """Token ids of `render(messages)`: exactly those of the whole text, but for control tokens that a content
        quotes. Those are hidden from the template and from the recognition of control tokens, and encoded as text."""
        ids, sound = self._encode_hiding(self._quoted, messages, render, encode)
        if not sound:  # the tokenizer's normalization made control tokens out of what did not look like any
            ids, _ = self._encode_hiding(_EVERYTHING, messages, render, encode)
        return ids

    def _encode_hiding(
        self, pattern: re.Pattern[str], messages: Sequence[Message], render: _Render, encode: _Encode
    ) -> tuple[TokenIds, bool]:
        """The ids, and whether the control tokens among them are only those that the template wrote."""
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match[0])
            return f"{_FENCE}{len(hidden) - 1}{_FENCE}"

        shown = [message | {"content": pattern.sub(hide, message["content"])} for message in messages]
        parts: list[TokenIds] = []
        sound = True
        for index, text in enumerate(_HIDDEN.split(render(shown))):
            if index % 2:
                parts.append(_array(self.encode_content(hidden[int(text)])))
            else:
                piece = encode(text)
                sound = sound and piece.controls == len(self._control.findall(text))
                parts.append(piece.ids)
        return np.concatenate(parts), sound

    def _encode_piece(self, text: str) -> _Piece:
        ids = self.encode(text)
        return _Piece(_array(ids), sum(map(self.control_ids.__contains__, ids)))

    def _encode_after_head(self, text: str) -> _Piece:
        """`_encode_piece(text)`, where the head that earlier texts had in common is not encoded again.

        The head ends where a control token begins: nothing is merged across that. It starts as the first text's, and
        shrinks to what a text that differs has in common with it.
        """
        head, known = self._head or (text, None)
        if known is None or not text.startswith(head):
            differs = (index for index, (ours, theirs) in enumerate(zip(head, text, strict=False)) if ours != theirs)
            common = next(differs, min(len(head), len(text)))
            cuts = [match.start() for match in self._cut.finditer(text, 0, common)]
            head = text[: cuts[-1]] if cuts else ""
            known = self._encode_piece(head)
            self._head = head, known
        rest = self._encode_piece(text[len(head) :])
        return _Piece(np.concatenate((known.ids, rest.ids)), known.controls + rest.controls)

    def _id(self, token: str | int) -> int:
        if isinstance(token, int):
            return token
        found = self._markup.token_to_id(token)
        if found is None:
            raise TokenizerError(f"the token {token!r} is not in the vocabulary")
        return found


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except TypeError:  # a lone surrogate: no UTF-8
        return tokenizer.encode(_SURROGATE.sub("\ufffd", text), add_special_tokens=False).ids


def _array(ids: Sequence[int]) -> TokenIds:
    return np.array(ids, dtype=np.int32)
