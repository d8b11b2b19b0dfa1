"""A prompt read back as the conversation it was rendered from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from tokenizers import Tokenizer

from concur_batch.simulator.model import ChatTokens
from concur_batch.simulator.request import TokenIds

ActionFormat = Literal["hermes", "react", "bash"]

_TOOL_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n?</tool_response>(?=\s*(?:<tool_response>|\Z))", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """One ChatML message."""

    role: str
    content: str


def read_conversation(input_ids: TokenIds, tokenizer: Tokenizer, tokens: ChatTokens) -> list[Message]:
    """The messages of a ChatML prompt. An assistant message that is open at the end is the one to be said: left out.

    Messages are told apart by their token ids, so that markup inside a text does not split it.
    """
    starts = np.flatnonzero(input_ids == tokens.start).tolist()
    messages = []
    for start, end in pairwise([*starts, len(input_ids)]):
        body = input_ids[start + 1 : end]
        closing = np.flatnonzero(body == tokens.end)
        if len(closing):
            body = body[: closing[0]]
        text = tokenizer.decode(body.tolist(), skip_special_tokens=False)
        role, _, content = text.partition("\n")
        if len(closing) or role != "assistant":
            messages.append(Message(role, content))
    return messages


def first_user_text(messages: Sequence[Message]) -> str:
    """The task's message; empty where there is none."""
    return next((message.content for message in messages if message.role == "user"), "")


def observations(message: Message, form: ActionFormat) -> list[str]:
    """What the tools returned, as told by a message that follows an assistant's."""
    if message.role not in ("user", "tool"):
        return []
    match form:
        case "hermes":
            found = _TOOL_RESPONSE.findall(message.content)
            return found or ([message.content] if message.role == "tool" else [])
        case "react":
            head, marker, rest = message.content.partition("Observation:")
            return [rest.removeprefix(" ").removeprefix("\n")] if marker and not head.strip() else []
        case "bash":
            return [message.content]
