"""`concur ls` and `concur stats` as commands: every state of a run, and directories that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from concur_batch.cli.app import app
from concur_batch.trace.files import locked
from tests.cli.looked_at_run import write_run

Row = dict[str, Any]


def concur(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)))


def listed(*directories: Path) -> dict[str, Row]:
    done = concur("ls", *directories, "--json")
    assert done.exit_code == 0, done.output
    return {row["run"]: row for row in json.loads(done.stdout)["runs"]}


def runs_in(directory: Path) -> Path:
    """Runs of every kind, and what is none."""
    write_run(directory / "killed", started_at="2026-11-30T01:00:00Z")
    write_run(directory / "done", status="finished", seconds=30.2, started_at="2026-11-30T02:00:00Z")
    write_run(directory / "live", started_at="2026-11-30T03:00:00Z")
    write_run(directory / "torn", started_at="2026-11-30T00:00:00Z")
    (directory / "torn" / "manifest.json").write_text("{")
    write_run(directory / "lost")
    (directory / "lost" / "manifest.json").unlink()
    write_run(directory / "odd")
    (directory / "odd" / "manifest.json").write_text('{"run": "odd", "workload": 3}')
    write_run(directory / "hurt", started_at="2026-11-29T00:00:00Z")
    (directory / "hurt" / "agents" / "r-000000.parquet").write_bytes(b"PAR1")
    (directory / "notes").mkdir()
    (directory / "file").touch()
    return directory


def test_every_kind_of_run_has_its_line_the_newest_first(tmp_path: Path) -> None:
    runs_in(tmp_path)
    with locked(tmp_path / "live" / ".driver.lock"):
        rows = listed(tmp_path)
    assert [*rows][:3] == ["live", "done", "killed"]
    assert {name: row["status"] for name, row in rows.items()} == {
        "live": "running", "done": "finished", "killed": "killed",
        **dict.fromkeys(("torn", "lost", "odd", "hurt"), "broken"),
    }  # fmt: skip
    assert "mend the JSON by hand" in rows["torn"]["error"]
    assert "holds no manifest.json" in rows["lost"]["error"]
    assert "is not that of a run" in rows["odd"]["error"]
    assert "cannot read table agents" in rows["hurt"]["error"]
    killed = rows["killed"]
    assert (killed["ended"], killed["agents"], killed["policy"], killed["engine"]) == (4, 6, "none", "simulated")
    assert (killed["reward_mean"], killed["seconds"]) == (1 / 3, 5.0)  # by its last row
    assert rows["done"]["seconds"] == 30.2
    files = [path for path in (tmp_path / "killed").rglob("*") if path.is_file()]
    assert killed["size_bytes"] == sum(path.stat().st_size for path in files) > 10_000


def test_the_list_in_the_terminal(tmp_path: Path) -> None:
    done = concur("ls", runs_in(tmp_path))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["run", "started", "status", "ended", "reward", "time", "policy", "engine", "bytes"]
    assert lines[1].split()[:7] == ["live", "2026-11-30", "03:00", "killed", "4/6", "0.333", "0:05"]
    assert lines[-1] == f"killed: goes on with `concur resume {tmp_path / 'live'}`"


def test_a_run_itself_an_empty_directory_and_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a" / "r")
    assert len(json.loads(concur("ls", run, tmp_path / "a", "--json").stdout)["runs"]) == 1
    (tmp_path / "empty").mkdir()
    assert concur("ls", tmp_path / "empty").stdout == f"no runs in {tmp_path / 'empty'}\n"
    done = concur("ls", tmp_path / "none")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "give a directory that runs are in" in done.stderr


def test_stats_of_one_and_of_two_runs(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    done = concur("stats", runs[0])
    assert done.exit_code == 0, done.output
    assert "at least one right of k samples (pass@k)" in done.stdout
    both = json.loads(concur("stats", *runs, "--json").stdout)
    assert [run["run"] for run in both["runs"]] == ["a", "b"]
    assert {len(spreads) for spreads in both["distributions"].values()} == {2}
    wrong = concur("stats", runs[0], tmp_path)
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
