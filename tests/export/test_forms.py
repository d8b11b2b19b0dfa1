"""A format made for a run, by what its directory holds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from concur_batch.agent.instructions import Instructions
from concur_batch.export.forms import FORMS, NoForm
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from tests.agent.agent_models import DEMO
from tests.agent.rollout_desk import CONFIG, SUBMIT, WORK
from tests.export.stories import SPECS, story

TOLD = Instructions("hermes", CONFIG.system, SPECS).to_json()


def run_with(directory: Path, **changes: Any) -> Run:
    """A run's directory with this in its manifest."""
    shutil.copytree(DEMO, directory / "model")
    manifest = {
        "run": directory.name,
        "started_at": "2026-11-30T10:11:12Z",
        "versions": {"concur-batch": "1.2"},
        "workload": {"model": {"name": "m", "sampling": {"logprobs": False}}, "replay": None},
        "prompting": TOLD,
    }
    write_manifest(directory, manifest | changes)
    return Run(directory)


@pytest.mark.parametrize("name", FORMS)
async def test_each_format_has_records_of_its_columns(tmp_path: Path, name: str) -> None:
    form = FORMS[name](run_with(tmp_path), "split")
    trajectory = await story(WORK, SUBMIT)
    records = form.records(trajectory)
    assert [set(record) for record in records] == [set(form.schema.names)] * (2 if name == "prompt-completion" else 1)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "tokens"])
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"prompting": None, "workload": {"replay": {"run": "r"}}}, "its agents were replayed"),
        ({"prompting": None}, "an older version made it"),
    ],
)
def test_a_run_without_prompts_is_refused_in_one_line(
    tmp_path: Path, name: str, changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(NoForm, match=f"^{tmp_path.name} holds no prompts, since {why}: .* is tokens$"):
        FORMS[name](run_with(tmp_path, **changes), "split")


async def test_tokens_can_be_made_of_any_run(tmp_path: Path) -> None:
    run = run_with(tmp_path, prompting=None, workload={"model": {"sampling": {"logprobs": True}}, "replay": {}})
    shutil.rmtree(tmp_path / "model")
    form = FORMS["tokens"](run, "drop")
    assert "logprobs" in form.schema.names
    assert len(form.records(await story(WORK, SUBMIT))) == 1


def test_a_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    run = run_with(tmp_path)
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    with pytest.raises(NoForm, match="not a tokenizer"):
        FORMS["messages"](run, "split")
