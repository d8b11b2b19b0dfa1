"""One agent's trajectory as one object, from its rows of the tables `agents`, `turns` and `tools`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

Row = Mapping[str, Any]

_SUMS = (
    "output_tokens",
    "input_tokens",
    "cached_device_tokens",
    "cached_host_tokens",
    "cached_storage_tokens",
    "recomputed_tokens",
    "pending_seconds",
    "paused_seconds",
    "queue_seconds",
    "generation_seconds",
    "tool_queue_seconds",
    "tool_seconds",
)
_IDS = ("input_delta_ids", "output_ids", "output_logprobs")

# How calls stand in the hermes format: as JSON, in which a script is hard to read. The other formats' texts read well.
_BLOCK = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.DOTALL)
_THOUGHT = "</think>"


@dataclass(frozen=True, slots=True)
class Reading:
    """What token ids are read with: `text` gives that of several, control tokens shown, `piece` that of one."""

    text: Callable[[Sequence[int]], str]
    piece: Callable[[int], str]


def attempts_of(agents: Iterable[Row], turns: Iterable[Row]) -> tuple[list[int], int]:
    """The attempts of an agent that anything is on record of, and the one that counts: the final one, or the last."""
    final = [row["attempt"] for row in agents if row["final"]]
    numbers = sorted({row["attempt"] for row in (*agents, *turns)})
    return numbers, final[0] if final else numbers[-1]


def trajectory(
    agents: Sequence[Row],
    turns: Sequence[Row],
    tools: Sequence[Row],
    attempt: int,
    form: str,
    reading: Reading | None,
    intents: Sequence[Row] = (),
    *,
    ids: bool = False,
) -> dict[str, Any]:
    """One attempt, whole: `agent`, its row, or null while it is under way; `sums` over its turns, null where no turn
    tells a figure; `turns`, each with its `calls`, their arguments parsed; and `unrecorded`, those of the `intents`, of
    which no turn is on record: their calls may have run.

    `form` is the action format. A turn's `said` is its text beside its calls (see the function `said`). Its `told`
    is the text that came before it where no call's output says it: the prompt, or what answered a malformed action;
    None too where there is no `reading` to read ids with. With `ids` they are there too, and each token's text.
    """
    ended = [row for row in agents if row["attempt"] == attempt]
    own = sorted((row for row in turns if row["attempt"] == attempt), key=lambda row: row["turn"])
    unrecorded = sorted((row for row in intents if row["attempt"] == attempt), key=lambda row: row["turn"])
    first = (*ended, *own, *unrecorded)[0]
    calls: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(tools, key=lambda row: (row["turn"], row["call"])):
        if row["attempt"] == attempt:
            calls.setdefault(row["turn"], []).append({**row, "arguments": parsed(row["arguments"])})
    found = []
    answered = False  # whether calls' outputs say what comes next
    for row in own:
        made = calls.get(row["turn"], [])
        shown: dict[str, Any] = {name: value for name, value in row.items() if name not in _IDS}
        shown["said"] = said(row["output_text"], row["action"], form)
        shown["delta_tokens"] = len(row["input_delta_ids"])
        shown["told"] = None if answered or reading is None else reading.text(row["input_delta_ids"])
        shown["calls"] = made
        if ids:
            shown |= {name: row[name] for name in _IDS}
            shown["input_pieces"] = [reading.piece(token) for token in row["input_delta_ids"]] if reading else None
            shown["output_pieces"] = [reading.piece(token) for token in row["output_ids"]] if reading else None
        found.append(shown)
        answered = bool(made)
    return {
        **{name: first[name] for name in ("agent_id", "task_id", "sample")},
        "attempt": attempt,
        "attempts": attempts_of(agents, (*turns, *intents))[0],
        "form": form,
        "ids_estimated": any(row["ids_estimated"] for row in own),
        "agent": ended[0] if ended else None,
        "sums": {name: _sum(row[name] for row in own) for name in _SUMS}
        | {
            "turns": len(own),
            "tool_calls": sum(map(len, calls.values())),
            "malformed_turns": sum(row["action"] == "malformed" for row in own),
            "pauses": sum(row["paused_seconds"] > 0 for row in own),
        },
        "turns": found,
        "unrecorded": unrecorded,
    }


def said(text: str, action: str, form: str) -> str:
    """A turn's text; in the hermes format without its calls, which are shown as they were made."""
    if action != "calls" or form != "hermes":
        return text
    # Reasoning may speak of calls.
    thinking, end, rest = text.rpartition(_THOUGHT)
    return f"{thinking}{end}{_BLOCK.sub('', rest)}".strip()


def argument_texts(arguments: Any) -> list[str]:
    """A call's arguments, each a text that begins with its name; a long one on lines of its own."""
    if not isinstance(arguments, Mapping):
        return [_as_text(arguments)]
    return [f"{name}:{_beside(_as_text(value))}" for name, value in arguments.items()]


def _beside(text: str) -> str:
    return f" {text}" if "\n" not in text else "\n" + "\n".join(f"  {line}" for line in text.rstrip("\n").split("\n"))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parsed(arguments: str) -> Any:
    """A call's arguments; as they stand, where they are no JSON."""
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def _sum(values: Iterable[Any]) -> Any:
    told = [value for value in values if value is not None]
    return sum(told) if told else None
