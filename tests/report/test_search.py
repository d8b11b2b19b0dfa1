"""A text found in all agents: where it stands, line by line, in the order of their work."""

from __future__ import annotations

import unicodedata
from typing import Any

from concur_batch.report.pattern import Pattern
from concur_batch.report.search import findings, findings_lines
from tests.cli.looked_at_run import CODE, HOSTILE, call, end, hermes, turn
from tests.trace.trace_rows import as_stored

Row = dict[str, Any]

AGENTS = [as_stored("agents", row) for row in (
    end("b/0", "failed", "malformed", 1, error="first\nneedle in an error"),
    end("a/0", "finished", "answer", 1, answer="the needle", verify_output="needle\nneedle needle"),
)]  # fmt: skip
TURNS = [
    turn("b/0", 0, "a Needle\nno\nneedles", action="malformed"),
    turn("a/0", 1, hermes("python", {"code": "needle"}, "thought")),
    turn("a/0", 0, hermes("python", {"code": CODE}, "needle"), attempt=1),
]
TOOLS = [
    call("a/0", 1, "python", {"code": "x\nneedle = 1"}, "no"),
    call("a/0", 0, "python", {"code": CODE}, "out\nneedle", attempt=1),
]


def found(searched: str) -> list[tuple[Any, ...]]:
    rows = findings(Pattern.of(searched), "hermes", AGENTS, TURNS, TOOLS)
    return [tuple(row.values()) for row in rows]


def test_every_line_in_order() -> None:
    assert found("needle") == [
        ("a/0", 0, 1, "python input", "  needle = 1"),
        ("a/0", 0, None, "answer", "the needle"),
        ("a/0", 0, None, "check", "needle"),
        ("a/0", 0, None, "check", "needle needle"),
        ("a/0", 1, 0, "model", "needle"),
        ("a/0", 1, 0, "python output", "needle"),
        ("b/0", 0, 0, "model", "a Needle"),
        ("b/0", 0, 0, "model", "needles"),
        ("b/0", 0, None, "error", "needle in an error"),
    ]
    assert [row[-1] for row in found("Needle")] == ["a Needle"]
    assert [row[-1] for row in found('print("a\\n")')] == ['  print("a\\n")']
    assert found("nowhere") == []


def test_a_long_line_is_shown_around_what_is_found() -> None:
    rows = findings(Pattern.of("needle"), "bash", [], [turn("a/0", 3, "x" * 500 + "needle" + "y" * 500)], [])
    (line, last) = findings_lines(rows, Pattern.of("needle"))
    assert line.plain == f"a/0 turn 3 model: …{'x' * 80}needle{'y' * 154}…"
    assert [line.plain[span.start : span.end] for span in line.spans if span.style == "reverse"] == ["needle"]
    assert last.plain == "1 line of 1 agent"


def test_the_count_and_the_places() -> None:
    rows = findings(Pattern.of("needle"), "hermes", AGENTS, TURNS, TOOLS)
    lines = [line.plain for line in findings_lines(rows, Pattern.of("needle"))]
    assert lines[1] == "a/0 answer: the needle"
    assert lines[4] == "a/0 attempt 1 turn 0 model: needle"
    assert lines[-1] == "9 lines of 2 agents"


def test_nothing_found_acts_on_the_terminal() -> None:
    name = "a\n\x1b/0"
    rows = findings(Pattern.of("red"), "bash", [], [], [call("a/0", 0, "ls\x9b", {}, HOSTILE) | {"agent_id": name}])
    (line, _) = findings_lines(rows, Pattern.of("red"))
    assert line.plain.startswith("a ␛/0 turn 0 ls\\x9b output: ␛[31mred␛[0m")
    assert not [sign for sign in line.plain if unicodedata.category(sign) == "Cc"]
