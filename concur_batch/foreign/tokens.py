"""A foreign trajectory in the tokens of the model that is to replay it: what comes before each turn, and how long its
output is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from concur_batch.agent.conversation import encode_pieces, written
from concur_batch.agent.encoding import TokenIds, Tokenizer
from concur_batch.agent.prompting import tools_section
from concur_batch.agent.template import ChatTemplate, Message, TemplateError
from concur_batch.agent.transcript import Transcript
from concur_batch.foreign.trajectory import Trajectory, Turn, Unfit


class Tokens(NamedTuple):
    """For each turn the new ids before it and the number of tokens of its output. `recorded` are ids that the file
    tells, others are made from its texts."""

    turns: list[tuple[TokenIds, int]]
    recorded: bool


def tokens_of(trajectory: Trajectory, tokenizer: Tokenizer) -> Tokens:
    """The ids that the file tells, where they are of this tokenizer and each prompt goes on from the one before; else
    the texts in the model's chat template, each output with the token that ends it. Raises Unfit where the template
    refuses the messages."""
    of_tokenizer = _is_of(tokenizer, trajectory)
    recorded = _recorded(trajectory.turns) if of_tokenizer else None
    if recorded is not None:
        return Tokens(recorded, True)
    try:
        return Tokens(_rendered(trajectory, tokenizer, of_tokenizer), False)
    except TemplateError as error:
        raise Unfit(f"the model's chat template refuses its messages: {error}") from None


def _is_of(tokenizer: Tokenizer, trajectory: Trajectory) -> bool:
    """Whether all outputs' ids are told, and say in this tokenizer what the file says in text."""
    for turn in trajectory.turns:
        if turn.output_ids is None or not _says(tokenizer, turn.output_ids, _texts(turn)):
            return False
    first = trajectory.turns[0]
    shown = [message["content"] for message in first.before]
    return first.prompt_ids is None or _says(tokenizer, first.prompt_ids, shown)


def _texts(turn: Turn) -> list[str]:
    return [turn.content, *(call.name for call in turn.calls if call.written)]


def _says(tokenizer: Tokenizer, ids: Sequence[int], texts: Sequence[str]) -> bool:
    said = tokenizer.decode(ids)
    return all(text.strip() in said for text in texts)


def _recorded(turns: Sequence[Turn]) -> list[tuple[TokenIds, int]] | None:
    """None where a prompt is not told, or does not go on from what was before it."""
    found: list[tuple[TokenIds, int]] = []
    history = np.empty(0, np.int32)
    for turn in turns:
        if turn.prompt_ids is None or turn.output_ids is None:
            return None
        prompt = np.array(turn.prompt_ids, np.int32)
        if not np.array_equal(prompt[: len(history)], history):
            return None
        found.append((prompt[len(history) :], len(turn.output_ids)))
        history = np.concatenate((prompt, np.array(turn.output_ids, np.int32)))
    return found


def _rendered(trajectory: Trajectory, tokenizer: Tokenizer, of_tokenizer: bool) -> list[tuple[TokenIds, int]]:
    """As an agent's history grows. Outputs whose ids are `of_tokenizer` have their length. Raises TemplateError."""
    template, transcript = tokenizer.template, Transcript(tokenizer)
    end_ids = tokenizer.closing_ids[-1:] or [min(tokenizer.eos_ids)]
    first, *later = trajectory.turns
    tools = trajectory.tools if template.takes_tools else None
    section = tools_section(trajectory.tools) if trajectory.tools and tools is None else ""
    transcript.start(_opening(first.before, section, template), tools)
    found: list[tuple[TokenIds, int]] = []
    for turn, following in zip(trajectory.turns, [*later, None], strict=True):
        new_ids = transcript.take_delta().copy()
        output_ids = turn.output_ids if of_tokenizer and turn.output_ids is not None else None
        if output_ids is None:
            output_ids = (*encode_pieces(tokenizer, written(_protocol(turn), opened=template.opens_thinking)), *end_ids)
        found.append((new_ids, len(output_ids)))
        transcript.generated(output_ids)
        if following is not None:
            transcript.observe(_shown(following.before, template))
    return found


def _protocol(turn: Turn) -> dict[str, object]:
    """The turn as a message of OpenAI's protocol."""
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls if call.written]
    return {"content": turn.content, "reasoning_content": turn.reasoning, "tool_calls": calls}


def _opening(messages: Sequence[Message], section: str, template: ChatTemplate) -> list[Message]:
    """The first prompt, with the tools' `section` in its system prompt."""
    systems = next((n for n, message in enumerate(messages) if message["role"] != "system"), len(messages))
    told = "\n\n".join(text for text in (*(message["content"] for message in messages[:systems]), section) if text)
    rest = _shown(messages[systems:], template)
    if not told:
        return rest
    if template.takes_system:
        return [{"role": "system", "content": told}, *rest]
    return _joined([{"role": "user", "content": told}, *rest])


def _shown(messages: Sequence[Message], template: ChatTemplate) -> list[Message]:
    """Later messages as the template can show them: a system prompt only stands first, a tool's result may have no role
    of its own, and some templates want users and assistants to alternate."""
    as_user = {"system"} if template.takes_tool_role else {"system", "tool"}
    return _joined(
        [
            {"role": "user", "content": message["content"]} if message["role"] in as_user else message
            for message in messages
        ]
    )


def _joined(messages: Sequence[Message]) -> list[Message]:
    """With adjacent messages of users as one."""
    found: list[Message] = []
    for message in messages:
        if found and message["role"] == "user" == found[-1]["role"]:
            found[-1] = {"role": "user", "content": f"{found[-1]['content']}\n\n{message['content']}"}
        else:
            found.append(message)
    return found
