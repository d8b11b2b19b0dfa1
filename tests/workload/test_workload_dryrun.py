"""The plan of a run."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from workload_files import loaded, write_tasks

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.workload.dryrun import plan
from concur_batch.workload.loading import load_tasks
from concur_batch.workload.settings import settings_of

DEMO_MODEL = Path(__file__).parents[2] / "workloads" / "demo_model"

pytestmark = pytest.mark.usefixtures("place")


def test_the_plan_says_what_would_run_and_touches_nothing(place: Path) -> None:
    write_tasks([{"question": "How many?", "answer": "4"}, {"question": "Which?", "answer": None}])
    found = loaded("verify: [{kind: answer}]\nagent: {limits: {turns: 3}}\n", overrides=("tasks.samples=3",))
    before = sorted(place.rglob("*"))
    result = plan(found, load_tasks(found))
    assert sorted(place.rglob("*")) == before
    assert orjson.loads(orjson.dumps(result)) == result
    assert (result["agents"], result["tasks"], result["samples"]) == (6, 2, 3)
    assert result["tasks_by_check"] == {"answer": 1, "none": 1}
    assert result["limits"]["turns"] == 3
    assert (result["engine"], result["policy"], result["format"]) == ("simulated", "concur", "hermes")
    assert result["tools"][0] == "bash"
    assert result["first_prompt"] == "How many?"
    assert result["first_prompt_tokens"] is None
    assert result["settings"] == settings_of(found.workload)


@pytest.mark.parametrize(
    ("format", "tools"),
    [("hermes", "sandbox"), ("hermes", "synthetic"), ("react", "sandbox"), ("react", "synthetic"), ("bash", "sandbox")],
)
def test_the_first_prompt_is_the_whole_of_what_the_engine_sees(format: str, tools: str) -> None:
    found = loaded(f"agent: {{system: Be brief., format: {format}}}\ntools: {{kind: {tools}}}\n")
    tokenizer = load_tokenizer(DEMO_MODEL)
    result = plan(found, load_tasks(found), tokenizer)
    prompt = result["first_prompt"]
    assert "Be brief." in prompt
    assert "why?" in prompt
    assert prompt.endswith("assistant\n")
    assert all(name in prompt for name in result["tools"]) or format == "bash"
    assert result["first_prompt_tokens"] == len(tokenizer.encode(prompt))
