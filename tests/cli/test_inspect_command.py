"""`concur inspect` as a command, on a run that was killed: rows in Parquet and in the journal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from concur_batch.cli.app import app
from concur_batch.trace import narrowing
from concur_batch.trace.encode import encode
from concur_batch.trace.writer import Writer
from tests.cli.looked_at_run import PROMPT, end, write_run
from tests.run.command import CONCUR

Row = dict[str, Any]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("inspected") / "r1")


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def told(*arguments: object) -> list[str]:
    done = inspect(*arguments)
    assert done.exit_code == 0, done.output
    return [line.rstrip() for line in done.stdout.splitlines()]


def found(*arguments: object) -> Row:
    return dict(json.loads("\n".join(told(*arguments, "--json"))))


def listed(*arguments: object) -> list[str]:
    return [line.split()[0] for line in told(*arguments)[3:]]


def test_the_list_has_every_agent_that_has_begun(run_dir: Path) -> None:
    lines = told(run_dir)
    assert lines[0] == "r1: 1 failed, 1 limit, 1 unfinished, 2 finished; 1 has not begun"
    assert listed(run_dir) == ["sum/1", "list/0", "wait/0", "list/1", "sum/0"]
    assert listed(run_dir, "--failed") == ["sum/1"]
    assert listed(run_dir, "--status", "unfinished, limit", "--sort", "agent") == ["list/0", "wait/0"]
    rows = {row["agent_id"]: row for row in found(run_dir)["listed"]}
    assert (rows["list/1"]["attempt"], rows["list/1"]["reward"], rows["list/1"]["turns"]) == (1, 0.0, 1)
    waiting = rows["wait/0"]
    assert (waiting["turns"], waiting["output_tokens"], waiting["tool_calls"], waiting["seconds"]) == (
        1,
        10,
        None,
        0.75,
    )
    assert found(run_dir)["agents"] == 6


def test_one_agent_whole(run_dir: Path) -> None:
    lines = told(run_dir, "sum/0")
    assert lines[0] == "sum/0: finished, submit, reward 1"
    for line in ("  ┊ <|im_start|>user", "    I count.", '      print("a\\n")', "  │ KeyError: 'b'", "  │ all good"):
        assert line in lines
    picture = found(run_dir, "sum/0")
    assert (picture["run"], picture["agent"]["reward"], len(picture["turns"])) == ("r1", 1.0, 2)
    assert picture["turns"][0]["told"] == PROMPT
    assert picture["turns"][0]["calls"][0]["arguments"]["code"].startswith("print(")
    assert "output_ids" not in picture["turns"][0]
    assert found(run_dir, "sum/0", "--ids")["turns"][0]["output_pieces"][0] == "I"


@pytest.mark.parametrize(
    ("given", "agent"), [("sum/1", "sum/1"), ("wait", "wait/0"), ("it/0", "wait/0"), ("t/1", "list/1")]
)
def test_an_agent_by_its_id_its_task_or_a_part(run_dir: Path, given: str, agent: str) -> None:
    assert told(run_dir, given)[0].startswith(f"{agent}: ")


def test_one_that_has_not_ended_is_read_from_the_journal(run_dir: Path) -> None:
    lines = told(run_dir, "wait/0")
    assert lines[0] == "wait/0: has not ended"
    assert lines[-1] == "  │ ok"


def test_calls_that_may_have_run_without_a_record_stand_behind_the_last_turn(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "r")
    (run_dir / "intents").mkdir()

    def intent(agent: str, turn: int, command: str) -> Row:
        calls = [{"call": 1, "name": "bash", "arguments": {"command": command}}]
        key = {"agent_id": agent, "task_id": agent.split("/")[0], "sample": 0, "attempt": 0}
        return {**key, "turn": turn, "started_seconds": turn + 0.5, "calls": calls}

    rows = [intent("wait/0", 0, "on record"), intent("wait/0", 1, "echo \x1b[2J"), intent("new/0", 0, "first")]
    lines = [json.dumps(row) + "\n" for row in rows]
    (run_dir / "intents" / "0-host0-000000.jsonl").write_text("".join(lines) + lines[0][:30])
    shown = told(run_dir, "wait/0")
    assert shown[-4:] == [
        "",
        "turn 1  1.50 s  no record: its calls run, or were cut off",
        "  bash",
        "    command: echo ␛[2J",
    ]
    assert not any("on record" in line for line in shown[:-4])
    assert shown[3].split()[1:3] == ["1", "turn,"], "what is on no record is not summed"
    assert [row["turn"] for row in found(run_dir, "wait")["unrecorded"]] == [1]
    assert found(run_dir, "wait", "--turn", 0)["unrecorded"] == []
    first = told(run_dir, "new")
    assert (first[0], first[-1]) == ("new/0: has not ended", "    command: first")
    assert found(run_dir, "sum/0")["unrecorded"] == []


def test_attempts_and_turns(run_dir: Path) -> None:
    assert "  │ second" in told(run_dir, "list/1")
    assert "  │ first" in told(run_dir, "list/1", "--attempt", 0)

    def turns(given: str) -> list[str]:
        return [line.split()[1] for line in told(run_dir, "sum/0", "--turn", given) if line.startswith("turn ")]

    assert [turns(given) for given in ("0", "-1", "0:1", "1:", ":", "5", "-2:")] == [
        ["0"], ["1"], ["0"], ["1"], ["0", "1"], [], ["0", "1"]
    ]  # fmt: skip


def test_a_search_through_all_agents(run_dir: Path) -> None:
    assert told(run_dir, "--search", "keyerror: 'b'") == [
        "sum/0 turn 0 python output: KeyError: 'b'",
        "1 line of 1 agent",
    ]
    assert told(run_dir, "--search", 'print("a\\n")') == [
        'sum/0 turn 0 python input:   print("a\\n")', "1 line of 1 agent"
    ]  # fmt: skip
    assert [row["line"] for row in found(run_dir, "--search", "/^(first|second)$/")["found"]] == ["first", "second"]
    assert [row["agent_id"] for row in found(run_dir, "--search", "I wait")["found"]] == ["wait/0"]
    assert [row["where"] for row in found(run_dir, "--search", "the reply is")["found"]] == ["error"]
    assert found(run_dir, "--search", "keyerror", "--failed")["found"] == []
    assert told(run_dir, "--search", "nowhere") == ["0 lines of 0 agents"]


def test_a_search_through_one_agent(run_dir: Path) -> None:
    lines = told(run_dir, "sum/0", "--search", "keyerror")
    assert [line for line in lines if line.startswith(("turn", ">"))][1:] == [
        next(line for line in lines if line.startswith("turn 0")), "> │ KeyError: 'b'"
    ]  # fmt: skip
    rows = found(run_dir, "sum/0", "--search", "/submit|KeyError/")["found"]
    assert [(row["turn"], row["line"]) for row in rows] == [(0, "KeyError: 'b'"), (1, "submitted")]
    assert found(run_dir, "sum/0", "--search", "/submit|KeyError/", "--turn", 1)["found"] == rows[1:]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sum"], "concur: sum: 2 agents could be meant; give one of sum/0, sum/1"),
        (["sun/0"], "concur: sun/0: no such agent has done anything in RUN; there are for instance sum/0, "),
        (["sum/0", "--attempt", "3"], "concur: --attempt 3: sum/0 has 0"),
        (["sum/0", "--turn", "1:2:3"], "concur: --turn 1:2:3: give a turn, 3 or -1, or a range of them, 2:5 or 8:"),
        (["sum/0", "--turn", ""], "concur: --turn : give a turn"),
        (["sum/0", "--failed"], "concur: --failed is of the list, without an AGENT"),
        (["--turn", "1"], "concur: --turn needs an AGENT"),
        (["--ids"], "concur: --ids needs an AGENT"),
        (["--status", "fail"], "concur: --status fail: no such status; did you mean `failed`?"),
        (["--sort", "rewards"], "concur: --sort rewards: no such order; did you mean `reward`?"),
        (["--search", "/(/"], "concur: --search: not a regular expression: "),
        (["--search", ""], "concur: --search: there is nothing to search for"),
    ],
)
def test_bad_input_is_one_line(run_dir: Path, arguments: list[str], line: str) -> None:
    done = inspect(run_dir, *arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(line.replace("RUN", str(run_dir)))


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    done = inspect(tmp_path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "not a run directory" in done.stderr


def test_without_a_tokenizer_all_else_is_shown(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "r")
    (run_dir / "model" / "tokenizer.json").unlink()
    lines = told(run_dir, "sum/0")
    assert lines[5].startswith("prompts cannot be read: ")
    assert "    I count." in lines


def test_only_the_row_groups_of_the_agent_are_read(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str]] = []
    real = narrowing.narrowed

    def narrowed(*arguments: Any) -> Any:
        parts = real(*arguments)
        read.append(sorted(parts.files))
        return parts

    monkeypatch.setattr("concur_batch.trace.reading.narrowed", narrowed)
    told(run_dir, "list/0")
    assert {Path(file).name for files in read for file in files} == {"r-000000.parquet"}  # the other holds others


def on_a_terminal(*arguments: object, **env: str) -> str:
    """What a terminal would get."""
    ours, theirs = pty.openpty()
    command = [CONCUR, "inspect", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm-256color", **env}
    )
    os.close(theirs)
    got = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # EIO: nobody has it open any more
            break
        if not part:
            break
        got += part
    os.close(ours)
    assert process.wait() == 0
    return got.decode()


def test_on_a_terminal_it_is_paged_in_colour_and_nothing_of_a_tools_output_acts(run_dir: Path, tmp_path: Path) -> None:
    pager = tmp_path / "less"  # by its name it is known to show colours
    pager.write_text('#!/bin/sh\necho "PAGED $LESS"\nexec cat\n')
    pager.chmod(0o755)
    env = {"PAGER": str(pager), "LESS": "FRX"}
    shown = on_a_terminal(run_dir, "list/0", "--full", "--search", "/red|line 50/", **env)
    assert "PAGED FRX" in shown
    assert "\x1b[7m" in shown  # what is found is reversed
    ours = re.sub(r"\x1b\[[0-9;]*m", "", shown.replace("\r\n", "\n"))
    assert "␛[31mred␛[0m␛]0;owned␇ \\x9b2J\\u202eback" in ours
    assert not re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", ours)
    assert "\x1b[31mred\x1b[0m\x1b]0" not in shown


def test_explain_lets_nothing_act_on_the_terminal_either(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "r")
    writer = Writer(run_dir, "s")
    writer.append(encode("agents", end("bad/0", "failed", "EngineError", 0, error="\x1b[2Jgone\x9b1A")))
    writer.close()
    done = CliRunner().invoke(app, ["explain", str(run_dir), "--agent", "bad/0"])
    assert (done.exit_code, done.stdout) == (0, "     1.00  failed, EngineError: ␛[2Jgone\\x9b1A\n")
