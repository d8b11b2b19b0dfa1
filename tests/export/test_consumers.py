"""Exports of whole runs in the hands of those for whom they are: datasets, TRL, polars, DuckDB, harbor's validator."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from concur_batch.export.forms import FORMS
from concur_batch.export.history import unforeseen
from concur_batch.export.trajectory import Trajectory
from concur_batch.trace.reading import Run
from tests.engine.chat_server import ChatServer, ChatServing
from tests.export.files import write_files
from tests.export.stories import trajectories
from tests.run.command import ROOT, concur, finished_run
from tests.run.test_openai_run import works, write_workload

VENV = ROOT / ".venv-train"
QUICKSTART = ("--set", "tasks.limit=4", "--set", "control.period_seconds=0.2", "--set", "engine.time_scale=40")


class Exported:
    """A run, its trajectories, and what the consumers made of its files."""

    def __init__(self, run: Run, directory: Path) -> None:
        self.run = run
        self.told = trajectories(run)
        self.files = directory / "files"
        self.records, self.forms = write_files(run, self.told, self.files)
        if not (VENV / ".stamp").exists():
            pytest.skip("no .venv-train: run make train-cpu (needs Python 3.11)")
        command = [
            str(VENV / "bin/python"),
            str(ROOT / "tests/export/consumers.py"),
            str(self.files),
            str(run.path / "model"),
        ]
        offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hub")}
        env = {
            **os.environ,
            **offline,
            "OMP_NUM_THREADS": "1",
        }  # threads that wait for each other burn what they wait for
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)
        assert done.returncode == 0, done.stderr
        self.seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    directory = tmp_path_factory.mktemp("quickstart")
    _, run = finished_run(ROOT / "workloads/quickstart.yaml", *QUICKSTART, "--set", f"output={directory / 'runs'}")
    return Exported(run, directory)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, list[Trajectory]]]:
    directory = tmp_path_factory.mktemp("chat")
    with ChatServing(ChatServer(works)) as url:
        done = concur("run", write_workload(directory, url, agents=4), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    run = Run(json.loads(done.stdout.splitlines()[-1])["run_dir"])
    yield run, trajectories(run)


def test_a_run_holds_what_its_agents_were_told(quickstart: Exported) -> None:
    agents = quickstart.run.agents_final().to_pylist()
    assert len(agents) == 8
    assert all(row["prompt"].startswith(f"Task {row['task_id']}\n\n") for row in agents)
    told = quickstart.run.manifest["prompting"]
    assert told["format"] == "hermes"
    assert told["system"] == (ROOT / "workloads/quickstart/system.md").read_text()
    assert "submit" in [tool["function"]["name"] for tool in told["tools"]]


def test_every_trajectory_is_rendered_as_it_was_recorded(quickstart: Exported) -> None:
    """The run's own template makes the very ids of it that the engine saw, but where the model wrote otherwise."""
    assert all(unforeseen(trajectory.turns) == [] for trajectory in quickstart.told)
    for name in ("messages", "prompt-completion", "sharegpt"):
        report = quickstart.forms[name].report()
        assert sum(report.values()) == len(quickstart.told)
        assert report["rendered as recorded"] >= 4, report
    assert quickstart.forms["tokens"].report() == {}


def plain(value: Any) -> Any:
    """As JSON has it; `datasets` reads the last digits of a number otherwise."""
    rounded = lambda text: round(float(text), 9)  # noqa: E731
    return json.loads(json.dumps(value, default=lambda array: array.tolist()), parse_float=rounded)


def test_datasets_gives_back_from_parquet_what_was_put_in(quickstart: Exported) -> None:
    for name in FORMS:
        rows = quickstart.seen["datasets"][f"{name}.parquet"]["rows"]
        assert plain(rows) == plain(quickstart.records[name]), name
    features = quickstart.seen["datasets"]["messages.parquet"]["features"]
    assert "'messages': Json(" in features
    rows = quickstart.seen["datasets"]["messages.parquet"]["rows"]
    others = [message for row in rows for message in row["messages"] if message["role"] != "assistant"]
    assert others and not any("tool_calls" in message for message in others)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def test_datasets_gives_back_from_json_lines_what_was_put_in_but_for_nulls(quickstart: Exported) -> None:
    for name in FORMS:
        rows = quickstart.seen["datasets"][f"{name}.jsonl"]["rows"]
        assert without_nulls(plain(rows)) == without_nulls(plain(quickstart.records[name])), name


def test_polars_reads_every_file(quickstart: Exported) -> None:
    rewards = sum(trajectory.agent["reward"] for trajectory in quickstart.told)
    for name in FORMS:
        for kind in ("parquet", "jsonl"):
            frame = quickstart.seen["polars"][f"{name}.{kind}"]
            assert frame["rows"] == len(quickstart.records[name])
            if name in ("tokens", "messages", "sharegpt"):
                assert frame["rewards"] == rewards
    assert quickstart.seen["polars"]["tokens.parquet"]["schema"]["input_ids"] == "List(Int32)"


def test_duckdb_reads_every_file(quickstart: Exported) -> None:
    for name in FORMS:
        for kind in ("parquet", "jsonl"):
            (found,) = duckdb.sql(f"select count(*) from '{quickstart.files / name}.{kind}'").fetchall()
            assert found == (len(quickstart.records[name]),)
    sampled = sum(trajectory.agent["output_tokens"] for trajectory in quickstart.told)
    query = f"select sum(list_sum(assistant_masks)) from '{quickstart.files / 'tokens.parquet'}'"
    assert duckdb.sql(query).fetchall() == [(sampled,)]


def test_trl_learns_just_what_the_mask_says(quickstart: Exported) -> None:
    """TRL takes tokens as they are; its labels are the sampled ids and nothing else."""
    for batch, record in zip(quickstart.seen["tokens"], quickstart.records["tokens"], strict=True):
        ids, mask = record["input_ids"], record["assistant_masks"]
        assert batch["input_ids"] == ids.tolist()
        assert batch["labels"] == np.where(mask == 1, ids, -100).tolist()


def test_trl_tokenizes_messages_to_the_recorded_ids(quickstart: Exported) -> None:
    """Of those that are rendered as recorded; what may follow is the end of the last turn."""
    alike = 0
    for batch, record in zip(quickstart.seen["messages"], quickstart.records["tokens"], strict=True):
        ids = record["input_ids"].tolist()
        alike += batch["input_ids"][: len(ids)] == ids and len(batch["input_ids"]) - len(ids) <= 2
    assert alike == quickstart.forms["messages"].report()["rendered as recorded"]


def test_trl_learns_one_turn_of_a_completion(quickstart: Exported) -> None:
    turns = [turn for trajectory in quickstart.told for turn in trajectory.turns]
    alike = 0
    for batch, turn in zip(quickstart.seen["prompt-completion"], turns, strict=True):
        learnt = [label for label in batch["labels"] if label != -100]
        assert learnt and batch["labels"][-len(learnt) :] == learnt  # at the end alone
        alike += learnt[: len(turn.output_ids)] == turn.output_ids.tolist()
    assert alike >= len(turns) // 2


def test_a_model_learns_from_it(quickstart: Exported) -> None:
    losses = quickstart.seen["training"]
    assert len(losses) == 12
    assert sum(losses[-3:]) / 3 < 0.7 * losses[0], losses


def test_harbors_validator_finds_nothing_wrong(quickstart: Exported) -> None:
    assert quickstart.seen["atif"] == [[]] * len(quickstart.told)
    assert quickstart.seen["no atif"]


def test_a_chat_servers_run_is_told_as_it_was_sent(chat: tuple[Run, list[Trajectory]], tmp_path: Path) -> None:
    run, told = chat
    records, forms = write_files(run, told, tmp_path / "files")
    assert len(told) == 4
    for record in records["messages"]:
        kinds = [message["role"] for message in record["messages"]]
        assert kinds == ["user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool", "assistant"]
        called = [call["function"] for call in record["messages"][1]["tool_calls"]]
        assert called[0] == {"name": "read_file", "arguments": {"path": "numbers.txt"}}
    assert forms["messages"].report() == {"not rendered for comparison, since the ids are estimates": 4}
    assert forms["tokens"].report() == {"ids are estimates": 4}
    assert all(record["ids_estimated"] for record in records["tokens"])
    assert all("completion_token_ids" not in step.get("metrics", {}) for step in records["atif"][0]["steps"])
