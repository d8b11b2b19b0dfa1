"""A trajectory in the terminal, line by line: head, turns, and how it ended. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from rich.text import Text

from concur_batch.report.pattern import Pattern
from concur_batch.report.printable import all_printable, one_line
from concur_batch.report.text import counted
from concur_batch.report.trajectory import Row, argument_texts

# Of a longer text, so many lines at its beginning and its end, and so many characters of a line.
_HEAD_LINES, _TAIL_LINES = 12, 6
_LINE_CHARACTERS = 500
_SHOWN_SECONDS = 0.001
_PIECES_CHARACTERS = 100

# What stands before each line, by who wrote it; the first character becomes > where something is found.
_MODEL, _PROMPT, _TOOL = "    ", "  ┊ ", "  │ "
_WAITS = (("pending_seconds", "waited for admission"), ("paused_seconds", "paused"), ("queue_seconds", "queued"))


def trajectory_lines(picture: Row, pattern: Pattern | None = None, *, full: bool = False) -> Iterator[Text]:
    """A trajectory (see the module `trajectory`) as lines. With a `pattern`, only the turns in which it is found, and
    what is found is marked; `full`: nothing is shortened."""
    picture = all_printable(picture)
    writer = _Writer(pattern, full)
    yield from _head(picture)
    blocks = [_turn(turn, before, picture["form"], writer) for before, turn in pairwise((None, *picture["turns"]))]
    blocks += [_unrecorded(turn, writer) for turn in picture["unrecorded"]]
    if picture["agent"] is not None:
        blocks += [_end(label, text, writer) for label, text in _last_texts(picture["agent"])]
    nothing = True
    for block in blocks:
        lines = list(block)
        if pattern is None or any(line.found for line in lines):
            nothing = False
            yield Text()
            yield from (line.text for line in lines)
    if pattern is not None and nothing:
        yield Text()
        yield Text("found in none of these turns")


class _Line:
    """A line, and whether what is searched for was found in it."""

    __slots__ = ("found", "text")

    def __init__(self, text: Text, found: bool = False) -> None:
        self.text = text
        self.found = found


class _Writer:
    """Texts to lines: shortened, and with what is found in them marked."""

    def __init__(self, pattern: Pattern | None, full: bool) -> None:
        self._pattern = pattern
        self._full = full

    def whole(self, before: str, text: str, style: str = "") -> Iterator[_Line]:
        """Every line of a text."""
        for line in text.split("\n"):
            yield self._line(before, line, style)

    def some(self, before: str, text: str, style: str = "") -> Iterator[_Line]:
        """A text's beginning and end, and what is found between them."""
        lines = text.removesuffix("\n").split("\n")
        last = 0
        for number in self._kept(lines):
            if number > last:
                yield self._gap(lines[last:number])
            yield self._line(before, self._cut(lines[number]), style)
            last = number + 1

    def _kept(self, lines: Sequence[str]) -> Iterable[int]:
        if self._full or len(lines) <= _HEAD_LINES + _TAIL_LINES + 1:
            return range(len(lines))
        ends = {*range(_HEAD_LINES), *range(len(lines) - _TAIL_LINES, len(lines))}
        return sorted(ends | {number for number, line in enumerate(lines) if self._spans(line)})

    def _cut(self, line: str) -> str:
        if self._full or len(line) <= _LINE_CHARACTERS or self._spans(line):
            return line
        return f"{line[:_LINE_CHARACTERS]} … {len(line) - _LINE_CHARACTERS:,} characters more (--full)"

    def _gap(self, lines: Sequence[str]) -> _Line:
        what = f"{len(lines):,} lines, {sum(map(len, lines)):,} characters left out (--full)"
        return _Line(Text(f"  … {what}", style="dim"))

    def _line(self, before: str, line: str, style: str) -> _Line:
        spans = self._spans(line)
        text = Text.assemble((f">{before[1:]}" if spans else before, "dim"), (line, style))
        for start, end in spans:
            text.stylize("reverse", len(before) + start, len(before) + end)
        return _Line(text, bool(spans))

    def _spans(self, line: str) -> list[tuple[int, int]]:
        return [] if self._pattern is None else self._pattern.spans(line)


def _head(picture: Row) -> Iterator[Text]:
    agent, sums = picture["agent"], picture["sums"]
    yield Text(one_line(f"{picture['agent_id']}: {_ending(agent)}"), style="bold")
    attempts = f"attempt {picture['attempt']}"
    if len(picture["attempts"]) > 1:
        attempts += f" of {', '.join(map(str, picture['attempts']))} (--attempt)"
    task = f"{picture['task_id']}, sample {picture['sample']}, {attempts}"
    yield _labelled("task", task if agent is None else f"{task}, seed {agent['seed']}, {agent['host']}")
    span = "" if agent is None else f"{agent['started_seconds']:.2f} s to {agent['ended_seconds']:.2f} s: "
    yield _labelled("time", f"{span}{_times(picture)}")
    counts = [counted(sums["turns"], "turn"), counted(sums["tool_calls"], "call"), counted(sums["pauses"], "pause")]
    yield _labelled("turns", f"{', '.join(counts)}, {sums['malformed_turns']} malformed")
    context = "" if agent is None else f"; {agent['context_tokens']:,} in the whole history"
    yield _labelled("tokens", f"{sums['output_tokens'] or 0:,} out on {_prompt(sums)}{context}")
    if agent is not None and agent["error"]:
        yield _labelled("error", agent["error"])
    if picture["ids_estimated"]:
        yield Text("token ids are estimates of our tokenizer: the engine took messages", style="yellow")
    for note in picture.get("notes", ()):
        yield Text(note, style="yellow")


def _ending(agent: Row | None) -> str:
    """In a few words, by the agent's row."""
    if agent is None:
        return "has not ended"
    reason = "" if agent["end_reason"] == agent["status"] else f", {agent['end_reason']}"
    reward = "" if agent["reward"] is None else f", reward {agent['reward']:g}"
    return f"{agent['status']}{reason}{reward}" + ("" if agent["final"] else " (tried again)")


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label:<8}", "cyan"), one_line(text))


def _times(picture: Row) -> str:
    sums, agent = picture["sums"], picture["agent"]
    waits = [f"{what} {sums[name]:.2f}" for name, what in _WAITS if (sums[name] or 0) >= _SHOWN_SECONDS]
    queued = sums["tool_queue_seconds"] or 0
    parts = [
        *waits,
        f"generated {sums['generation_seconds'] or 0:.2f}",
        f"tools {sums['tool_seconds'] or 0:.2f}" + (f" (and {queued:.2f} in a queue)" if queued >= 0.01 else ""),
    ]
    if agent is not None and agent["verify_seconds"] is not None:
        parts.append(f"checked {agent['verify_seconds']:.2f}")
    return ", ".join(parts)


def _prompt(row: Row) -> str:
    """The prompt's tokens, and what became of them."""
    whole = f"{row['input_tokens'] or 0:,}"
    if row["cached_device_tokens"] is None:
        return f"{whole} (nobody tells how many were cached)" if row["input_tokens"] else whole
    lower = sum(row[f"cached_{tier}_tokens"] or 0 for tier in ("host", "storage"))
    cached = f"{row['cached_device_tokens'] + lower:,} cached"
    if lower:
        cached += f", {lower:,} of them off the device"
    return f"{whole} ({cached}, {row['recomputed_tokens'] or 0:,} computed again)"


def _turn(turn: Row, before: Row | None, form: str, writer: _Writer) -> Iterator[_Line]:
    facts = [
        *(f"{what} {turn[name]:.2f} s" for name, what in _WAITS if turn[name] >= _SHOWN_SECONDS),
        *([f"moved from pool {before['replica']} to {turn['replica']}"] if before and _moved(before, turn) else []),
        f"{turn['output_tokens']:,} out in {turn['generation_seconds']:.2f} s on {_prompt(turn)}",
        *([f"{turn['request_attempts']} tries"] if turn["request_attempts"] > 1 else []),
        turn["finish_reason"],
        *([turn["action"]] if turn["action"] != "calls" else []),
    ]
    began = f"  {turn['started_seconds']:.2f} s"
    told = one_line(" · ".join(facts))
    yield _Line(Text.assemble((f"turn {turn['turn']}", "bold"), (began, "dim"), f"  {told}"))
    if turn["told"] is not None:
        yield from writer.some(_PROMPT, turn["told"])
    elif turn["turn"] == 0:
        yield _Line(Text(f"{_PROMPT}{turn['delta_tokens']:,} tokens of prompt", style="dim"))
    yield from _ids("prompt", turn["input_delta_ids"], turn["input_pieces"]) if "input_pieces" in turn else ()
    if turn["said"].strip():
        yield from writer.whole(_MODEL, turn["said"].strip("\n"))
    yield from _ids("output", turn["output_ids"], turn["output_pieces"]) if "output_pieces" in turn else ()
    for call in turn["calls"]:
        yield from _call(call, form, writer)


def _call(call: Row, form: str, writer: _Writer) -> Iterator[_Line]:
    good = call["status"] == "ok" and not call["exit_code"]
    facts = [call["status"], f"{call['seconds']:.2f} s"]
    if call["exit_code"]:
        facts.insert(1, f"exit code {call['exit_code']}")
    if call["queue_seconds"] >= 0.01:
        facts.append(f"queued {call['queue_seconds']:.2f} s")
    if call["truncated"]:
        facts.append(f"cut from {call['output_bytes']:,} bytes")
    style = "" if good else "red"
    yield _Line(Text.assemble((f"  {one_line(call['name'])}", "cyan"), (f"  {' · '.join(facts)}", style)))
    if form != "bash":  # there they stand in the text
        yield from _arguments(call, writer)
    if call["output"]:
        yield from writer.some(_TOOL, call["output"])


def _arguments(call: Row, writer: _Writer) -> Iterator[_Line]:
    for text in argument_texts(call["arguments"]):
        yield from writer.some(_MODEL, text, "green")


def _unrecorded(turn: Row, writer: _Writer) -> Iterator[_Line]:
    """What a turn without a record was about to run."""
    began = f"  {turn['started_seconds']:.2f} s"
    told = "  no record: its calls run, or were cut off"
    yield _Line(Text.assemble((f"turn {turn['turn']}", "bold"), (began, "dim"), (told, "yellow")))
    for call in turn["calls"]:
        yield _Line(Text(f"  {one_line(call['name'])}", style="cyan"))
        yield from _arguments(call, writer)


def _ids(what: str, ids: Sequence[int], pieces: Sequence[str] | None) -> Iterator[_Line]:
    """Token by token, as many to a line as fit."""
    yield _Line(Text(f"  {what}: {len(ids):,} token ids", style="magenta"))
    line = ""
    for number, token in enumerate(ids):
        shown = str(token) if pieces is None else f"{token} {json.dumps(pieces[number], ensure_ascii=False)}"
        if line and len(line) + len(shown) > _PIECES_CHARACTERS:
            yield _Line(Text(f"    {line}", style="dim"))
            line = ""
        line += f"  {shown}" if line else shown
    if line:
        yield _Line(Text(f"    {line}", style="dim"))


def _last_texts(agent: Row) -> Iterator[tuple[str, str]]:
    """What is left to show after the last turn, with its label."""
    for label, name in (("answer", "answer"), ("check", "verify_output")):
        if agent[name]:
            yield label, agent[name]


def _end(label: str, text: str, writer: _Writer) -> Iterator[_Line]:
    yield _Line(Text(label, style="bold"))
    yield from writer.some(_TOOL if label == "check" else _MODEL, text)


def _moved(before: Row, turn: Row) -> bool:
    return bool(before["replica"] != turn["replica"])
