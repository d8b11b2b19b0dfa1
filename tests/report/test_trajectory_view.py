"""A trajectory told line by line: who said what, shortened and not, searched, in ids, and whatever the texts are."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.vocabulary import Vocabulary
from concur_batch.report.pattern import Pattern
from concur_batch.report.trajectory import Reading, attempts_of, trajectory
from concur_batch.report.trajectory_view import trajectory_lines
from tests.cli.looked_at_run import CODE, DEMO, PROMPT, RETRY, TOKENIZER, call, end, hermes, turn
from tests.trace.trace_rows import as_stored

Row = dict[str, Any]

_VOCABULARY = Vocabulary(DEMO)
READING = Reading(_VOCABULARY.text, _VOCABULARY.piece)

TURNS = [
    turn("sum/0", 1, hermes("submit", {"answer": "3"}), paused_seconds=2.0, replica="1"),
    turn("sum/0", 0, hermes("python", {"code": CODE}, "I count."), PROMPT, pending_seconds=0.5),
]
TOOLS = [
    call("sum/0", 1, "submit", {"answer": "3"}, "submitted"),
    call("sum/0", 0, "python", {"code": CODE}, "Traceback\nKeyError: 'b'", status="error", exit_code=1),
]
AGENTS = [
    end("sum/0", "finished", "submit", 2, reward=1.0, answer="3", verify_output="all good", verify_seconds=0.5)
]  # fmt: skip


def picture(agents: list[Row], turns: list[Row], tools: list[Row], form: str = "hermes", **options: Any) -> Row:
    stored = [
        [as_stored(table, row) for row in rows]
        for table, rows in (("agents", agents), ("turns", turns), ("tools", tools))
    ]
    attempt = options.pop("attempt", attempts_of(*stored[:2])[1])
    return trajectory(*stored, attempt, form, options.pop("reading", READING), **options)


def told(picture: Row, searched: str | None = None, *, full: bool = False) -> list[str]:
    pattern = None if searched is None else Pattern.of(searched)
    return [line.plain for line in trajectory_lines(picture, pattern, full=full)]


def test_a_trajectory_from_its_prompt_to_its_check() -> None:
    assert told(picture(AGENTS, TURNS, TOOLS)) == [
        "sum/0: finished, submit, reward 1",
        "task    sum, sample 0, attempt 0, seed 5, host0",
        "time    1.00 s to 5.00 s: waited for admission 0.50, paused 2.00, generated 1.00, tools 0.50, checked 0.50",
        "turns   2 turns, 2 calls, 1 pause, 0 malformed",
        "tokens  20 out on 200 (120 cached, 10 computed again); 220 in the whole history",
        "",
        "turn 0  1.00 s  waited for admission 0.50 s · 10 out in 0.50 s on 100 (60 cached, 5 computed again) · stop",
        "  ┊ <|im_start|>user",
        "  ┊ Sum it.<|im_end|>",
        "  ┊ <|im_start|>assistant",
        "    I count.",
        "  python  error · exit code 1 · 0.25 s",
        "    code:",
        '      print("a\\n")',
        "      print(sum([1, 2]))",
        "  │ Traceback",
        "  │ KeyError: 'b'",
        "",
        "turn 1  2.00 s  paused 2.00 s · moved from pool 0 to 1 · 10 out in 0.50 s on 100 (60 cached, 5 computed again)"
        " · stop",
        "  submit  ok · 0.25 s",
        "    answer: 3",
        "  │ submitted",
        "",
        "answer",
        "    3",
        "",
        "check",
        "  │ all good",
    ]


def test_one_that_has_not_ended_and_whose_engine_tells_no_hits() -> None:
    untold = dict.fromkeys(("cached_device_tokens", "first_tokens", "recomputed_tokens", "rounding_tokens"))
    lines = told(picture([], [{**TURNS[1], **untold}], []))
    assert lines[0] == "sum/0: has not ended"
    assert lines[4] == "tokens  10 out on 100 (nobody tells how many were cached)"
    assert lines[6].endswith("10 out in 0.50 s on 100 (nobody tells how many were cached) · stop")


def test_ids_that_are_estimates_are_told_as_such() -> None:
    lines = told(picture([], [{**TURNS[1], "ids_estimated": True}, TURNS[0]], []))
    assert lines[5] == "token ids are estimates of our tokenizer: the engine took messages"


def test_what_answered_a_malformed_action_is_told_and_what_a_call_said_is_not_told_twice() -> None:
    turns = [turn("a/0", 0, "words", PROMPT, action="malformed"), turn("a/0", 1, hermes("ls", {}), RETRY),
             turn("a/0", 2, "done", PROMPT, action="answer")]  # fmt: skip
    found = picture([], turns, [call("a/0", 1, "ls", {}, "f")])
    assert [shown["told"] for shown in found["turns"]] == [PROMPT, RETRY, None]
    lines = told(found)
    assert [line for line in lines if "a call must stand" in line] == ["  ┊ a call must stand in tags<|im_end|>"]
    assert [line.split(" · ")[-1] for line in lines if line.startswith("turn ")] == ["malformed", "stop", "answer"]


def test_without_a_tokenizer_the_prompts_length_is_told() -> None:
    lines = told(picture(AGENTS, TURNS, TOOLS, reading=None) | {"notes": ["no tokenizer"]})
    assert lines[5] == "no tokenizer"
    assert lines[8] == f"  ┊ {len(TOKENIZER.encode(PROMPT))} tokens of prompt"


def test_of_several_attempts_the_final_one_counts_and_another_can_be_asked_for() -> None:
    agents = [end("a/0", "failed", "EngineError", 1, final=False, error="gone\nfor ever"),
              end("a/0", "finished", "answer", 1, attempt=1)]  # fmt: skip
    turns = [turn("a/0", 0, "first", PROMPT), turn("a/0", 0, "second", PROMPT, attempt=1),
             turn("a/0", 0, "third", PROMPT, attempt=2)]  # fmt: skip
    lines = told(picture(agents, turns, []))
    assert lines[1].endswith("attempt 1 of 0, 1, 2 (--attempt), seed 5, host0")
    assert "    second" in lines
    other = told(picture(agents, turns, [], attempt=0))
    assert other[0] == "a/0: failed, EngineError (tried again)"
    assert other[5] == "error   gone for ever"
    assert "    first" in other


def long_output(text: str) -> Row:
    return picture([], [turn("a/0", 0, hermes("ls", {}), "")], [call("a/0", 0, "ls", {}, text)])


def test_a_long_output_is_shortened_in_its_middle_with_what_is_left_out_counted() -> None:
    text = "".join(f"{number:03d}\n" for number in range(100))
    lines = told(long_output(text))
    at = lines.index("  … 82 lines, 246 characters left out (--full)")
    assert lines[at - 12 : at] == [f"  │ {number:03d}" for number in range(12)]
    assert lines[at + 1 :] == [f"  │ {number:03d}" for number in range(94, 100)]
    full = told(long_output(text), full=True)
    assert full[-100:] == [f"  │ {number:03d}" for number in range(100)]
    (line,) = [line for line in told(long_output("x" * 600)) if "x" * 9 in line]
    assert line == f"  │ {'x' * 500} … 100 characters more (--full)"


@pytest.mark.parametrize("lines", [1, 18, 19, 20])
def test_what_is_hardly_longer_is_not_shortened(lines: int) -> None:
    shown = told(long_output("y\n" * lines))
    assert shown.count("  │ y") == (lines if lines < 20 else 18)


def test_a_search_shows_the_turns_where_it_is_found_and_marks_it() -> None:
    found = picture(AGENTS, TURNS, TOOLS)
    assert [line for line in told(found, "keyerror") if line[:1] in ">t"][-2:] == [
        "turn 0  1.00 s  waited for admission 0.50 s · 10 out in 0.50 s on 100 (60 cached, 5 computed again) · stop",
        "> │ KeyError: 'b'",
    ]
    marked = [line for line in trajectory_lines(found, Pattern.of("keyerror")) if line.plain.startswith(">")]
    assert [line.plain[span.start : span.end] for line in marked for span in line.spans if span.style == "reverse"] == [
        "KeyError"
    ]
    assert told(found, "all good")[-2:] == ["check", "> │ all good"]
    assert [line for line in told(found, "/sum.it|answer: 3/") if line.startswith(">")] == [
        "> ┊ Sum it.<|im_end|>",
        ">   answer: 3",
    ]
    assert told(found, "nowhere")[5:] == ["", "found in none of these turns"]


def test_what_is_found_in_the_middle_of_a_long_output_is_shown() -> None:
    text = "".join(f"{number:03d}\n" for number in range(100))
    lines = told(long_output(text), "050")
    at = lines.index("> │ 050")
    assert lines[at - 1] == "  … 38 lines, 114 characters left out (--full)"
    assert lines[at + 1] == "  … 43 lines, 129 characters left out (--full)"
    found = told(long_output("x" * 600 + "needle"), "needle")
    assert found[-1] == f"> │ {'x' * 600}needle"


def test_ids_are_shown_token_by_token_with_control_tokens() -> None:
    found = picture(AGENTS, TURNS, TOOLS, ids=True)
    first = found["turns"][0]
    assert "".join(first["input_pieces"]) == PROMPT
    assert "".join(first["output_pieces"]) == first["output_text"]
    lines = told(found)
    at = lines.index(f"  prompt: {len(first['input_delta_ids'])} token ids")
    assert lines[at + 1].startswith(f'    1 "<|im_start|>"  {first["input_delta_ids"][1]} "')
    shown = re.findall(r'(\d+) ("(?:[^"\\]|\\.)*")', " ".join(lines[at + 1 : lines.index("    I count.")]))
    assert [int(token) for token, _ in shown] == first["input_delta_ids"]
    assert "input_delta_ids" not in picture(AGENTS, TURNS, TOOLS)["turns"][0]


@pytest.mark.parametrize(
    ("text", "form", "shown"),
    [
        ('a\n<tool_call>\n{"name": 1}\n</tool_call>\nb', "hermes", ["    a", "    ", "    b"]),
        ("<think><tool_call>no</tool_call></think>a<tool_call>{", "hermes",
         ["    <think><tool_call>no</tool_call></think>a"]),
        ("Thought: a\nAction: ls", "react", ["    Thought: a", "    Action: ls"]),
    ],
)  # fmt: skip
def test_a_turns_text_is_without_the_json_of_its_calls(text: str, form: str, shown: list[str]) -> None:
    lines = told(picture([], [turn("a/0", 0, text, "")], [call("a/0", 0, "ls", {}, "f")], form))
    begin = next(number for number, line in enumerate(lines) if line.startswith("  ┊")) + 1
    assert lines[begin : begin + len(shown)] == shown


def test_the_bash_formats_commands_are_not_told_twice() -> None:
    text = "```bash\nls\n```"
    lines = told(picture([], [turn("a/0", 0, text, "")], [call("a/0", 0, "bash", {"command": "ls"}, "f")], "bash"))
    assert lines[-5:] == ["    ```bash", "    ls", "    ```", "  bash  ok · 0.25 s", "  │ f"]


ANY = st.text(st.sampled_from("\x1b\x9b\x07\r\n\t\x00\x7f\u202e[]ax ")) | st.text()


@settings(deadline=None)
@given(ANY, ANY, ANY, st.dictionaries(ANY, ANY | st.integers(), max_size=3), ANY, st.booleans())
def test_whatever_is_written_nothing_acts_on_the_terminal(
    name: str, text: str, output: str, arguments: Row, error: str, full: bool
) -> None:
    agent = {"agent_id": name, "task_id": name}
    texts = dict.fromkeys(("error", "answer", "verify_output", "end_reason", "host"), error)
    found = picture(
        [end("a/0", "failed", "x", 1, **texts) | agent],
        [turn("a/0", 0, text, text, replica=name) | agent],
        [call("a/0", 0, name, arguments, output) | agent],
        ids=True,
    )
    lines = told(found, full=full) + told(found, "a", full=full)
    assert all(unicodedata.category(sign) not in ("Cc", "Zl", "Zp") or sign == "\t" for line in lines for sign in line)
    heads = [line for line in lines if line.startswith("turn ")]  # no text is taken for one
    assert len(heads) <= 2
    assert all(line.startswith("turn 0  1.00 s  10 out") for line in heads)
