"""`concur replay-from` as a command: what it writes, prints, skips and refuses; and what takes its file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from concur_batch.cli.app import app
from concur_batch.foreign.file import read_agents

ROOT = Path(__file__).parents[2]
FILES = ROOT / "tests" / "fixtures" / "foreign"
DEMO = ROOT / "workloads" / "demo_model"
NAMES = ("mini_text.traj.json", "mini_tools.traj.json", "mini_responses.traj.json", "atif.json", "messages.jsonl")


def concur(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def replay_from(*arguments: object) -> Result:
    return concur("replay-from", *arguments, "--model", DEMO)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, the current one, with the trajectories in it."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        shutil.copy(FILES / name, tmp_path)
    return tmp_path


@pytest.fixture
def loaded(place: Path) -> dict[str, Any]:
    """What the command says of a file of all trajectories."""
    done = replay_from(*NAMES, "--json")
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def write_workload(**blocks: Any) -> Path:
    workload = {
        "name": "w",
        "tasks": {"file": "gone.jsonl", "prompt": "x"},
        "model": {"name": "m", "tokenizer": str(DEMO)},
        "engine": {"kind": "simulated", "synthetic": {}},
        "control": {"policy": "none"},
        **blocks,
    }
    Path("w.yaml").write_text(yaml.safe_dump(workload))
    return Path("w.yaml")


def test_all_formats_together_become_one_file(loaded: dict[str, Any]) -> None:
    assert loaded["file"] == "replay.parquet"
    assert (loaded["agents"], loaded["turns"]) == (8, 3 + 2 + 2 + 3 + 1 + 2 + 1 + 2)
    assert loaded["formats"] == {"mini-swe-agent": 3, "atif": 2, "messages": 3}
    assert loaded["calls"] == {"measured": 3, "between_steps": 2, "drawn": 7}
    assert loaded["skipped"] == [
        {"reason": "it shows images, and a replay sends texts", "count": 1, "first": "messages.jsonl:5"}
    ]
    agents = read_agents(Path("replay.parquet"))
    assert [agent.agent_id for agent in agents] == [
        "demo__hello-1/0", "mini_tools/0", "mini_responses/0", "stocks/0", "helper/0", "sum/0", "sum/1",
        "messages-4/0",
    ]  # fmt: skip
    steps = [step for agent in agents if agent.trajectory is not None for step in agent.trajectory.steps]
    assert loaded["new_tokens"] == sum(len(step.new_ids) for step in steps)
    assert loaded["output_tokens"] == sum(step.output_tokens for step in steps)


def test_a_person_is_told_what_there_is_and_how_to_go_on(place: Path) -> None:
    done = replay_from(*NAMES, "-o", "other.parquet", "--tool-seconds", "1:1")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "other.parquet: 8 agents (2 of atif, 3 of messages, 3 of mini-swe-agent), 16 turns"
    assert lines[1].endswith("; ids as recorded for 0 agents, made from texts for 8")
    assert lines[2] == (
        "calls: 3 measured, 2 from step to step, with a generation in them, 7 told by no file and drawn from 1:1 s; "
        "median 1 s, longest 1.5 s"
    )
    assert lines[3] == "skipped 1: messages.jsonl:5: it shows images, and a replay sends texts"
    assert lines[-2:] == [
        "concur run WORKLOAD.YAML --replay other.parquet",
        "concur simulate WORKLOAD.YAML --from other.parquet",
    ]


def test_the_same_files_and_seed_make_the_same_file(place: Path) -> None:
    contents = []
    for seed in (0, 0, 1):
        assert replay_from(*NAMES, "--seed", seed).exit_code == 0  # an earlier file of the command is written over
        contents.append(Path("replay.parquet").read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_a_bad_file_among_good_ones_is_skipped_with_a_line(place: Path) -> None:
    Path("bad.json").write_text("{")
    Path("odd.json").write_text('{"a": 1}')
    done = replay_from("bad.json", "odd.json", "gone.json", "atif.json")
    assert done.exit_code == 0
    told = [line for line in done.stdout.splitlines() if line.startswith("skipped")]
    assert len(told) == 3
    assert told[0].startswith("skipped 1: bad.json: is not JSON: ")
    assert told[1].startswith("skipped 1: odd.json: it is of no format that is known")
    assert told[2] == "skipped 1: gone.json: cannot be read: no such file or directory"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["gone.json"], "skipped 1: gone.json: cannot be read: no such file or directory\n"
                        "concur: no trajectory was read, and nothing is written"),
        (["atif.json", "-o", "atif.json"], "concur: --output atif.json: is one of the files to read; give another"),
        (["atif.json", "-o", "mini_text.traj.json"], "concur: --output mini_text.traj.json: is there, and this command "
                                                     "has not made it; give another"),
        (["atif.json", "--tool-seconds", "2:1"], "concur: --tool-seconds 2:1: give the least and the most as 0.2:2, or "
                                                 "0:0 for no waits"),
        (["atif.json", "--tool-seconds", "x"], "concur: --tool-seconds x: give the least and the most as 0.2:2, or 0:0 "
                                               "for no waits"),
    ],
)  # fmt: skip
def test_bad_input_is_refused(place: Path, arguments: list[str], told: str) -> None:
    done = replay_from(*arguments)
    assert done.exit_code == 2
    assert done.stderr.rstrip("\n") == told
    assert not Path("replay.parquet").exists()


def test_a_directory_without_a_tokenizer_is_refused(place: Path) -> None:
    done = concur("replay-from", "atif.json", "--model", "nowhere")
    assert done.exit_code == 2
    assert done.stderr.startswith("concur: nowhere: ")
    assert done.stderr.count("\n") == 1


def test_a_workload_replays_the_file_by_option_or_by_key(loaded: dict[str, Any]) -> None:
    by_option = concur("run", write_workload(), "--replay", "replay.parquet", "--dry-run", "--json")
    assert by_option.exit_code == 0, by_option.output
    workload = yaml.safe_load(write_workload().read_text())
    del workload["tasks"]
    Path("key.yaml").write_text(yaml.safe_dump(workload | {"replay": {"file": "replay.parquet", "limit": 3}}))
    by_key = concur("run", "key.yaml", "--dry-run", "--json")
    assert by_key.exit_code == 0, by_key.output
    planned, limited = json.loads(by_option.stdout), json.loads(by_key.stdout)
    assert (planned["agents"], planned["replayed_turns"], planned["samples"]) == (8, 16, 2)
    assert (limited["agents"], limited["replayed_turns"]) == (3, 7)
    assert "Please make hello.txt." in planned["first_prompt"]


def test_what_cannot_be_replayed_is_refused_in_one_line(loaded: dict[str, Any], place: Path) -> None:
    other = place / "other"
    other.mkdir()
    for file in DEMO.iterdir():
        (other / file.name).write_bytes(file.read_bytes() + b"\n")
    Path("text.parquet").write_text("hello")
    for arguments, told in (
        (["--replay", "replay.parquet"], "--replay: replay.parquet is a file, whose trajectories name no model"),
        ([write_workload(), "--replay", "text.parquet"], "is no file of `concur replay-from`"),
        ([write_workload(), "--replay", "gone.parquet"], "--replay: not a run directory: gone.parquet"),
        ([write_workload(), "--replay", "replay.parquet", "--set", f"model.tokenizer={other}"],
         "the token ids of replay.parquet are not of this tokenizer"),
    ):  # fmt: skip
        done = concur("run", *arguments, "--dry-run")
        assert done.exit_code == 2, done.output
        assert told in done.stderr
        assert done.stderr.count("\n") == 1


def test_the_file_is_simulated(loaded: dict[str, Any]) -> None:
    section = {"gpu": "l40s", "model": "qwen3-8b", "pool_tokens": 4000}
    workload = write_workload(engine={"kind": "sglang", "url": "http://gpu:1"}, simulate=section)
    done = concur("simulate", workload, "--from", "replay.parquet", "--policy", "none", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["agents"] == 8
    assert found["variations"][0] == "as recorded"
    assert found["recorded"] is None
    assert concur("simulate", workload, "--from", "replay.parquet", "--seeds", 2).exit_code == 2
