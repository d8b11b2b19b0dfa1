"""`concur export` with a format of the tests' own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from concur_batch.cli.app import app
from concur_batch.export import forms
from concur_batch.trace.compaction import compact
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.manifest import update_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.tables import Tables
from concur_batch.trace.writer import Writer, recover
from tests.export.exported_runs import Plain, agent, turns_of, write_run
from tests.run.command import ROOT
from tests.s3_server import Server

SEED = 1  # puts the tasks a and b into different halves
AGENTS = [
    agent("a", 0, reward=1.0),
    agent("a", 1, reward=0.5, turns=3),
    agent("a", 2, reward=1.0, turns=4),
    agent("a", 3, status="failed", final=False, attempt=0),
    agent("a", 3, status="limit", end_reason="turns", attempt=1, turns=5),
    agent("b", 0, reward=0.0),
    agent("b", 1, reward=1.0, error="odd"),
    agent("b", 2, status="failed", end_reason="malformed", turns=1),
]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "FORMS", {"plain": lambda run, rewritten: Plain()})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Seven agents ended, of nine."""
    return write_run(tmp_path / "run", AGENTS, agents=9, status="interrupted")


def export(*arguments: object, code: int = 0) -> str:
    """What it prints; to stderr, where it must fail."""
    done = CliRunner().invoke(app, ["export", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, done.output
    return done.stderr if code else done.stdout


def to(out: Path, *arguments: object) -> dict[str, Any]:
    """An export's summary."""
    found: dict[str, Any] = json.loads(export(*arguments, "--format", "plain", "--out", out, "--json").splitlines()[-1])
    return found


def names(out: Path, split: str = "train", name: str = "agent_id") -> list[Any]:
    """The agents of a split, in the order of the files."""
    found: list[Any] = []
    for path in sorted((out / "data").glob(f"{split}-*")):
        if path.suffix == ".jsonl":
            found += [orjson.loads(line)[name] for line in path.read_bytes().splitlines()]
        else:
            found += pa.parquet.read_table(path)[name].to_pylist()
    return found


def everything(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def test_finished_agents_are_exported_and_the_others_counted(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = to(out, run.path)
    assert names(out) == ["a/0", "a/2", "a/1", "b/0"]
    assert summary["dropped"] == {"status failed": 1, "status limit": 1, "has an error": 1}
    assert (summary["ended"], summary["kept"], summary["not_ended"]) == (7, 4, {"run": 2})
    train = summary["splits"]["train"]
    assert (train["trajectories"], train["records"], train["turns"], train["files"]) == (4, 4, 11, 1)
    assert (train["tokens"], train["sampled_tokens"]) == (66, 33)
    assert train["size_bytes"] == sum(path.stat().st_size for path in (out / "data").iterdir())
    assert summary["report"] == {"seen": 5}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    (ids,) = [ids for name, ids in zip(names(out), names(out, name="input_ids"), strict=True) if name == "a/0"]
    mark = sum(b"a/0")
    assert ids == [mark, 0, 1, mark, 0, 2, mark, 1, 1, mark, 1, 2]


def test_a_person_is_told_what_was_dropped_and_that_the_run_goes_on(run: Run, tmp_path: Path) -> None:
    told = export(run.path, "--format", "plain", "--out", tmp_path / "out", "--task", "a", "--status", "limit")
    assert [" ".join(line.split()) for line in told.splitlines()[:4]] == [
        "ended 7",
        "dropped: status failed 1",
        "dropped: status finished 5",
        "kept 1",
    ]
    assert "\ntrain: 1 trajectories, 1 records, 5 turns, 30 tokens, 15 sampled, 0.0 MB\n" in told
    assert "run is interrupted: 2 agents have not ended" in told
    assert str(tmp_path / "out") in told


def test_every_agent_counts_under_one_reason(run: Run, tmp_path: Path) -> None:
    summary = to(
        tmp_path / "out", run.path, "--status", "finished", "--status", "limit", "--turns", "2:4", "--reward-min", 0.1,
        "--where", "agent_id <> 'a/1'", "--best", 1, "--dedup", "exact",
    )  # fmt: skip
    assert summary["dropped"] == {
        "status failed": 1,
        "reward below 0.1, or none": 2,
        "where is not true": 1,
        "has an error": 1,
        "not among the best 1 of its task": 1,
    }
    assert summary["kept"] + sum(summary["dropped"].values()) == summary["ended"] == 7
    card = (tmp_path / "out" / "README.md").read_text()
    assert (
        "    --turns 2:4\n" in card and "    --rewritten split\n" in card and "    --where agent_id <> 'a/1'\n" in card
    )
    assert names(tmp_path / "out") == ["a/0"]


def test_splits_are_by_task_and_other_tasks_change_none(tmp_path: Path) -> None:
    agents = [agent(f"t{number}", sample) for number in range(30) for sample in range(2)]
    few, many = write_run(tmp_path / "few", agents[:20]), write_run(tmp_path / "many", agents)
    options = ("--split", "train=0.6,val=0.4", "--seed", 7, "--files", "jsonl")
    to(tmp_path / "a", few.path, *options)
    to(tmp_path / "b", many.path, *options)
    found = {split: names(tmp_path / "b", split) for split in ("train", "val")}
    assert sorted(found["train"] + found["val"]) == sorted(row["agent_id"] for row in agents)
    tasks = {split: {name.partition("/")[0] for name in agents} for split, agents in found.items()}
    assert tasks["train"] and tasks["val"] and not tasks["train"] & tasks["val"]
    of_few = {split: names(tmp_path / "a", split) for split in found}
    all_of_few = {*of_few["train"], *of_few["val"]}
    assert of_few == {split: [name for name in found[split] if name in all_of_few] for split in found}


@pytest.mark.parametrize("files", ["parquet", "jsonl"])
def test_the_same_run_gives_the_same_bytes_however_its_parts_lie(files: str, run: Run, tmp_path: Path) -> None:
    options = ("--files", files, "--status", "limit", "--status", "finished", "--shard-mb", 0.01)
    to(tmp_path / "a", run.path, *options)
    to(tmp_path / "b", run.path, *options)
    recover(run.path)
    compact(Tables(run.path))
    assert len(list((run.path / "turns").iterdir())) == 2 and not list((run.path / "journal").iterdir())
    to(tmp_path / "c", run.path, *options)
    assert everything(tmp_path / "a") == everything(tmp_path / "b") == everything(tmp_path / "c")


def test_several_runs_are_one_data_set(run: Run, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", [agent("a", 0, reward=0.75, turns=1), agent("c", 0, reward=1.0)])
    summary = to(tmp_path / "out", run.path, other.path, "--best", 3)
    assert list(zip(names(tmp_path / "out", name="run"), names(tmp_path / "out"), strict=True)) == [
        ("run", "a/0"), ("run", "a/2"), ("other", "a/0"), ("run", "b/0"), ("other", "c/0"),
    ]  # fmt: skip
    assert summary["not_ended"] == {"run": 2, "other": 0}
    assert "* run: `other`, finished, 2 agents\n" in (tmp_path / "out" / "README.md").read_text()
    update_manifest(other.path, identity={"tasks": "a", "model.tokenizer": "c"})
    told = export(run.path, other.path, "--format", "plain", "--out", tmp_path / "two", code=2)
    assert "run and other have other tokenizers, whose ids do not mix" in told


def test_tables_elsewhere_are_read(s3: Server, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], tables=s3.uri("bucket/exported"))
    writer = Writer(run.path, "n")
    for turn in turns_of(agent("a")):
        writer.append(encode_turn(*turn))
    writer.append(encode("agents", agent("a")))
    writer.close()
    to(tmp_path / "out", run.path)
    assert names(tmp_path / "out") == ["a/0"] and not (run.path / "turns").exists()


LOAD = """
import sys, datasets
for out in sys.argv[1:]:
    for name, rows in sorted(datasets.load_dataset(out).items()):
        print(name, rows["agent_id"][:], sum(map(len, rows["input_ids"])))
"""


def test_datasets_finds_the_splits_by_the_card_and_by_the_names_of_files(run: Run, tmp_path: Path) -> None:
    expected = []
    for files, card in (("parquet", True), ("parquet", False), ("jsonl", True), ("jsonl", False)):
        out = tmp_path / f"{files}-{card}"
        summary = to(out, run.path, "--files", files, "--split", "train=0.5,holdout=0.5", "--seed", SEED)
        for split, volume in summary["splits"].items():
            assert volume["files"] == 1
            expected.append(f"{split} {names(out, split)} {volume['tokens']}")
        if not card:
            (out / "README.md").unlink()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    outs = [str(path) for path in sorted(tmp_path.iterdir()) if path.name.endswith(("True", "False"))]
    loaded = subprocess.run([sys.executable, "-c", LOAD, *outs], env=environment, capture_output=True, text=True)
    assert loaded.returncode == 0, loaded.stderr
    assert sorted(loaded.stdout.splitlines()) == sorted(expected)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--format", "plaid"], "concur: --format plaid: there is no such thing; did you mean `plain`?"),
        (["--status", "done"], "concur: --status done: there is no such thing; give one of finished, limit"),
        (["--files", "csv"], "concur: --files csv: there is no such thing; give one of parquet, jsonl"),
        (["--dedup", "all"], "concur: --dedup all: there is no such thing; give one of exact, text"),
        (["--rewritten", "keep"], "concur: --rewritten keep: there is no such thing; give one of split, drop"),
        (["--turns", "5"], "concur: --turns 5: give MIN:MAX, MIN: or :MAX, as 2:10"),
        (["--tokens", "5:1"], "concur: --tokens 5:1: nothing is from 5 to 1"),
        (["--split", "train=2"], "concur: --split train=2: the share of train is 2; give shares above 0"),
        (["--best", "0"], "concur: --best 0: nothing would be left; give at least 1"),
        (["--shard-mb", "0"], "concur: --shard-mb 0: too small for a file; give at least 0.01"),
        (["--where", "colour = 1"], 'concur: --where: Binder Error: Referenced column "colour" not found'),
    ],
)
def test_what_cannot_be_meant_is_told_in_one_line(arguments: list[str], line: str, run: Run, tmp_path: Path) -> None:
    given = ["--format", "plain"] if "--format" not in arguments else []
    told = export(run.path, "--out", tmp_path / "out", *given, *arguments, code=2)
    assert told.startswith(line) and told.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_no_run_and_no_place_is_told(run: Run, tmp_path: Path) -> None:
    plain = ("--format", "plain", "--out", tmp_path / "out")
    assert "not a run directory" in export(tmp_path / "absent", *plain, code=2)
    assert "run is given 2 times; give each run once" in export(run.path, run.path, *plain, code=2)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    assert "not empty; remove it, or give another directory" in export(run.path, *plain, code=2)
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "mine"]


def test_an_export_of_nothing_leaves_nothing_and_says_why(run: Run, tmp_path: Path) -> None:
    told = export(run.path, "--format", "plain", "--out", tmp_path / "out", "--reward-min", 2, code=1)
    assert told == "concur: nothing is left to export: every trajectory was dropped\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


SLOW = """
import time, typer
from concur_batch.cli.export import export
from concur_batch.export import forms
from tests.export.exported_runs import Plain

class Slow(Plain):
    def records(self, trajectory):
        found = super().records(trajectory)
        if self.seen == 2:
            print("half", flush=True)
            time.sleep(60)
        return found

forms.FORMS = {"plain": lambda run, rewritten: Slow()}
typer.run(export)
"""


def broken_off(run: Run, out: Path, number: int) -> int:
    """The exit code of an export that gets a signal when it is half done."""
    arguments: Sequence[str] = (str(run.path), "--format", "plain", "--out", str(out))
    command = [sys.executable, "-c", SLOW, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None and process.stdout.readline() == b"half\n"
        process.send_signal(number)
        return process.wait(timeout=60)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_an_export_that_is_broken_off_is_not_there(number: int, code: int, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert broken_off(run, out, number) == code
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ([".out.lock", ".out.tmp", "run"] if number == signal.SIGKILL else ["run"])
    to(out, run.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    assert names(out) == ["a/0", "a/2", "a/1", "b/0"]
