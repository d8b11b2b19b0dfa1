"""What changes a fingerprint, and what does not."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from workload_files import loaded, write_tasks

from concur_batch.trace.manifest import write_manifest
from concur_batch.workload.change import read_control
from concur_batch.workload.fingerprint import differences, fingerprint, identity, tasks_digest
from concur_batch.workload.loading import load_again, load_tasks
from concur_batch.workload.settings import settings_of

pytestmark = pytest.mark.usefixtures("place")

VERIFY = "verify: [{kind: answer}]\n"


@pytest.fixture(autouse=True)
def rows(place: Path) -> None:
    write_tasks([{"id": "a", "question": "?", "answer": "1"}, {"id": "b", "question": "!", "answer": "2"}])


def print_of(*overrides: str) -> str:
    found = loaded(VERIFY, overrides=overrides)
    return fingerprint(identity(found.workload, tasks_digest(load_tasks(found), found.workload.verify)))


@pytest.mark.parametrize(
    "override",
    [
        "tasks.seed=1",
        "tasks.samples=2",
        "tasks.limit=1",
        "tasks.prompt='Say: {{ question }}'",
        "model.name=other",
        "model.sampling.temperature=0",
        "model.sampling.extra={min_p: 0.1}",
        "agent.format=react",
        "agent.system=Be brief.",
        "agent.limits.turns=3",
        "tools.names=[bash]",
        "tools.deadline_seconds=1",
        "verify.0.match=number",
    ],
)
def test_what_changes_results_changes_it(override: str) -> None:
    assert print_of(override) != print_of()


@pytest.mark.parametrize(
    "override",
    [
        "name=other",
        "output=elsewhere",
        "storage=s3://bucket/runs",
        "control.policy=none",
        "control.period_seconds=3",
        "agent.hosts=2",
        "agent.attempts=1",
        "tools.max_running=2",
        "tools.keep_workspaces=true",
        "engine.pool_tokens=1000",
        "engine.time_scale=10",
        "engine.cost.decode_step_seconds=1",
        "tasks.prompt='{{ question }}{# the same #}'",
    ],
)
def test_what_only_changes_the_run_does_not(override: str) -> None:
    assert print_of(override) == print_of()


def test_contents_count_not_names() -> None:
    first = print_of()
    Path("tasks.jsonl").rename("renamed.jsonl")
    Path("tokenizer").rename("moved")
    assert print_of("tasks.file=renamed.jsonl", "model.tokenizer=moved") == first
    (Path("moved") / "chat_template.jinja").write_text("{{ messages }}")
    changed = print_of("tasks.file=renamed.jsonl", "model.tokenizer=moved")
    assert changed != first


def test_a_system_prompt_is_the_same_from_a_file() -> None:
    Path("system.md").write_text("Be brief.")
    assert print_of("agent.system_file=system.md") == print_of("agent.system=Be brief.")


def test_the_content_of_a_script_counts() -> None:
    first = print_of()
    Path("s.jsonl").write_text("{} \n")
    assert print_of() != first


def test_a_synthetic_load_counts_by_its_settings() -> None:
    synthetic = ("tools.kind=synthetic", "engine.script=null")
    prints = {
        print_of(),
        print_of(*synthetic, "engine.synthetic={}"),
        print_of(*synthetic, "engine.synthetic={turns: [1, 2]}"),
        print_of(*synthetic, "engine.synthetic={}", "tools.wait_seconds=[1, 2]"),
    }
    assert len(prints) == 4


def test_tasks_count_by_what_agents_get_and_are_judged_by() -> None:
    first = print_of()
    row_a, row_b = {"id": "a", "question": "?", "answer": "1"}, {"id": "b", "question": "!", "answer": "2"}
    write_tasks([row_b, row_a])
    assert print_of() == first
    write_tasks([row_a | {"note": "unused"}, row_b | {"note": "unused"}])
    assert print_of() == first
    for change in ({"question": "??"}, {"answer": "3"}, {"id": "c"}):
        write_tasks([row_a | change, row_b])
        assert print_of() != first


def test_an_identity_survives_the_manifest() -> None:
    found = identity(loaded(VERIFY).workload, "d")
    assert orjson.loads(orjson.dumps(found)) == found


def test_settings_are_complete_and_flat() -> None:
    settings = settings_of(loaded(VERIFY, overrides=("model.sampling.extra={min_p: 0.1}",)).workload)
    assert settings["verify.0.match"] == "exact"
    assert settings["model.sampling.extra.min_p"] == 0.1
    assert settings["control.policy"] == "token_window"
    assert not any(isinstance(value, dict) and value for value in settings.values())


def test_what_differs_is_told_line_by_line(place: Path) -> None:
    def now(*overrides: str) -> dict[str, object]:
        found = loaded(VERIFY, overrides=overrides)
        return identity(found.workload, tasks_digest(load_tasks(found), found.workload.verify))

    before = now()
    assert differences(before, now("control.policy=none", "agent.hosts=3", "engine.time_scale=10")) == []
    write_tasks([{"id": "a", "question": "?", "answer": "1"}])
    assert differences(before, now("agent.limits.turns=3", "model.sampling.extra={min_p: 0.1}")) == [
        "agent.limits.turns: was 50, is 3",
        "model.sampling.extra: was {}, is not there",
        "model.sampling.extra.min_p: was not there, is 0.1",
        "tasks: the content has changed",
    ]


def test_a_runs_workload_is_read_again_from_its_manifest(place: Path) -> None:
    first = loaded(VERIFY, overrides=["agent.limits.turns=7"])
    run_dir = place / "elsewhere" / "run"
    manifest = {"workload": first.workload.model_dump(mode="json"), "workload_file": str(first.path)}
    write_manifest(run_dir, manifest)
    control = read_control({"policy": "concur", "u_high": 0.6})
    again = load_again(run_dir, manifest, control, ["control.alpha=4"])
    digest = tasks_digest(load_tasks(again), again.workload.verify)
    assert identity(again.workload, digest) == identity(
        first.workload, tasks_digest(load_tasks(first), first.workload.verify)
    )
    assert (again.workload.control.u_high, again.workload.control.alpha) == (0.6, 4)  # type: ignore[union-attr]
    assert again.workload.output == run_dir.parent, "wherever it has been moved to"
    assert again.system == first.system
    gone = {**manifest, "workload": {**manifest["workload"], "model": {**manifest["workload"]["model"]}}}
    gone["workload"]["model"]["tokenizer"] = str(place / "gone")
    (run_dir / "model").mkdir()
    for file in first.workload.model.tokenizer.iterdir():
        (run_dir / "model" / file.name).write_bytes(file.read_bytes())
    moved = load_again(run_dir, gone, None, [])
    assert identity(moved.workload, digest) == identity(first.workload, digest)
