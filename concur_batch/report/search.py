"""What is found in the texts of all agents, line by line. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from concur_batch.report.pattern import Pattern
from concur_batch.report.printable import one_line, printable
from concur_batch.report.text import counted
from concur_batch.report.trajectory import argument_texts, parsed, said

Row = Mapping[str, Any]

# Of a long line, so many characters before what is found, and so many in all.
_BEFORE_CHARACTERS, _LINE_CHARACTERS = 80, 240
_OF_AGENT = {"error": "error", "answer": "answer", "check": "verify_output"}


def findings(
    pattern: Pattern, form: str, agents: Iterable[Row], turns: Iterable[Row], tools: Iterable[Row]
) -> list[dict[str, Any]]:
    """A row for each line in which the pattern is found, in the order of agents, attempts and turns.

    It has `agent_id`, `attempt`, `turn` (None for what was said of an agent's end), `where` and the `line`. `form` is
    the action format.
    """
    texts = [*_of_turns(turns, form), *_of_tools(tools), *_of_agents(agents)]
    texts.sort(key=lambda text: text[0])
    return [
        {
            "agent_id": place[0],
            "attempt": place[1],
            "turn": None if place[2] == math.inf else place[2],
            "where": where,
            "line": line,
        }
        for place, where, text in texts
        for line in pattern.lines(printable(text))
    ]


def findings_lines(rows: Sequence[Row], pattern: Pattern) -> Iterator[Text]:
    """The rows in the terminal, what is found marked, and how many they are."""
    for row in rows:
        turn = "" if row["turn"] is None else f" turn {row['turn']}"
        attempt = f" attempt {row['attempt']}" if row["attempt"] else ""
        names = {name: one_line(row[name]) for name in ("agent_id", "where")}
        place = Text.assemble((names["agent_id"], "cyan"), f"{attempt}{turn}", (f" {names['where']}: ", "dim"))
        yield place.append_text(_marked(row, pattern))
    agents = len({row["agent_id"] for row in rows})
    yield Text(f"{counted(len(rows), 'line')} of {counted(agents, 'agent')}", style="bold")


def _of_turns(turns: Iterable[Row], form: str) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    for row in turns:
        yield (*_agent(row), row["turn"], 0), "model", said(row["output_text"], row["action"], form)


def _of_tools(tools: Iterable[Row]) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    for row in tools:
        made = "\n".join(argument_texts(parsed(row["arguments"])))
        yield (*_agent(row), row["turn"], 1, row["call"], 0), f"{row['name']} input", made
        yield (*_agent(row), row["turn"], 1, row["call"], 1), f"{row['name']} output", row["output"]


def _of_agents(agents: Iterable[Row]) -> Iterator[tuple[tuple[Any, ...], str, str]]:
    for row in agents:
        for number, (where, name) in enumerate(_OF_AGENT.items()):
            yield (*_agent(row), math.inf, number), where, row[name] or ""


def _agent(row: Row) -> tuple[str, int]:
    return row["agent_id"], row["attempt"]


def _marked(row: Row, pattern: Pattern) -> Text:
    """The line, or the part of a long one around what is found first."""
    line = row["line"]
    spans = pattern.spans(line)
    first = max(0, spans[0][0] - _BEFORE_CHARACTERS) if len(line) > _LINE_CHARACTERS else 0
    part = line[first : first + _LINE_CHARACTERS]
    before, after = "…" if first else "", "…" if first + len(part) < len(line) else ""
    text = Text(f"{before}{part}{after}")
    for start, end in spans:
        text.stylize("reverse", start - first + len(before), min(end - first, len(part)) + len(before))
    return text
