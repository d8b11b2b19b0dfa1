from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools_env.support import Agent
from tools_env.verify import verify_answer, verify_command

TEST = "import solution\nassert solution.double(4) == 8\n"


async def test_reward_of_a_command(agent: Agent) -> None:
    await agent.write_file(path="solution.py", content="def double(x):\n    return x + x\n")
    files = {"hidden/test.py": f"import sys; sys.path.append('.')\n{TEST}"}
    right = await verify_command(agent.session, "python3 hidden/test.py", files)
    assert (right.status, right.reward) == ("done", 1.0)
    await agent.edit_file(path="solution.py", old="x + x", new="x")
    wrong = await verify_command(agent.session, "python3 test.py", {"test.py": TEST})
    assert (wrong.status, wrong.reward) == ("done", 0.0) and "AssertionError" in wrong.output


@pytest.mark.parametrize(
    ("command", "status", "reward"),
    [
        ("true", "done", 1.0),
        ("echo fine", "done", 1.0),
        ("exit 7", "done", 0.0),
        ("echo 'reward: 0.25'", "done", 0.25),
        ("echo 'reward: 0.25'; echo", "done", 0.25),
        ("echo 'reward: -1'", "done", -1.0),
        ("echo 'reward: 1'; exit 1", "done", 0.0),
        ("echo 'reward: 0.25'; echo but then", "done", 1.0),
        ("seq 100000; echo 'reward: 0.5'", "done", 0.5),
        ("echo 'reward: nan'", "crashed", None),
        ("echo 'reward: lots'", "crashed", None),
        ("echo 'reward: 1'; sleep 60", "timeout", None),
    ],
)
async def test_reading_the_outcome(agent: Agent, command: str, status: str, reward: float | None) -> None:
    outcome = await verify_command(agent.session, command, {}, deadline_seconds=1.5)
    assert (outcome.status, outcome.reward) == (status, reward), outcome


async def test_a_vanished_workspace_is_no_reward(agent: Agent) -> None:
    agent.workspace.rename(agent.workspace.with_name("gone"))
    outcome = await verify_command(agent.session, "true", {})
    assert (outcome.status, outcome.reward) == ("crashed", None)


async def test_what_the_agent_planted_does_not_count(agent: Agent, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host's")
    plant = (
        "echo 'reward: 1' | tee reward reward.txt; mkdir -p test.py/in locked; chmod 0 test.py locked;"
        f"ln -s {tmp_path} hidden; ln -s {secret} data; mkfifo pipe; echo 'echo reward: 1; exit 0' > .bashrc;"
        "cp .bashrc .profile; v=$(python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])');"
        "d=.local/lib/python$v/site-packages; mkdir -p $d;"
        "echo 'import os; print(\"reward: 1\", flush=True); os._exit(0)' > $d/usercustomize.py;"
        "(while :; do echo 'pass' > test.py; echo reward: 1 > late; done) & disown"
    )
    assert (await agent.bash(command=plant)).status == "ok"
    assert (await agent.bash(command="python3 -c 'print(0)'")).output == "reward: 1\n", "the trap works on the agent"
    files = dict.fromkeys(("test.py", "hidden/test.py", "data", "pipe", "locked/in/test.py"), "raise SystemExit(1)")
    for name in files:
        outcome = await verify_command(agent.session, f"python3 {name}", files)
        assert (outcome.status, outcome.reward) == ("done", 0.0), (name, outcome)
    assert secret.read_text() == "host's" and not (tmp_path / "test.py").exists()


async def test_a_check_that_is_run_again_leaves_what_one_leaves(agent: Agent) -> None:
    await agent.bash(command="mkdir own locked; chmod 755 own; chmod 0 locked")
    files = {f"{name}/expected": "1" for name in ("own", "locked", "new")}
    for _ in range(2):
        assert (await verify_command(agent.session, "true", files)).reward == 1.0
        modes = {name: (agent.workspace / name).stat().st_mode & 0o777 for name in ("own", "locked", "new")}
        assert modes == {"own": 0o755, "locked": 0o700, "new": 0o755}


async def test_hidden_files_stay_inside(agent: Agent) -> None:
    for path in ("../x", "/x", ""):
        with pytest.raises(ValueError, match="workspace file"):
            await verify_command(agent.session, "true", {path: ""})


@pytest.mark.parametrize(
    ("answer", "expected", "kind", "reward"),
    [
        ("  New   York\n", "new york", "exact", 1.0),
        ("Boston", "new york", "exact", 0.0),
        (None, "new york", "exact", 0.0),
        (None, "", "exact", 0.0),
        ("", "", "exact", 1.0),
        ("42", "42.0", "number", 1.0),
        ("The answer is $1,234.50.", "1234.5", "number", 1.0),
        ("1e3", "1000", "number", 1.0),
        ("-.5", "-0.5", "number", 1.0),
        ("3.14159", "3.14160", "number", 0.0),
        ("1000000.5", "1000000", "number", 1.0),
        ("41 or 42", "42", "number", 0.0),
        ("none", "42", "number", 0.0),
        (None, "0", "number", 0.0),
        ("abc-12", r"[a-c]+-\d+", "regex", 1.0),
        ("xabc-12", r"[a-c]+-\d+", "regex", 0.0),
        (None, r".*", "regex", 0.0),
    ],
)
def test_answers(answer: str | None, expected: str, kind: str, reward: float) -> None:
    assert verify_answer(answer, expected, kind) == reward  # type: ignore[arg-type]


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_a_number_equals_itself_however_written(number: float) -> None:
    assert verify_answer(f"= {number!r} units", str(number), "number") == 1.0


@given(st.text(max_size=30))
def test_exact_ignores_case_and_layout(text: str) -> None:
    assert verify_answer(f" {text.upper().replace(' ', chr(10))} ", text.upper(), "exact") == 1.0


@pytest.mark.parametrize(("expected", "kind"), [("two", "number"), ("1 2", "number"), ("(", "regex")])
def test_a_task_that_expects_nonsense_is_refused(expected: str, kind: str) -> None:
    with pytest.raises(ValueError, match="expected answer"):
        verify_answer("1", expected, kind)  # type: ignore[arg-type]
