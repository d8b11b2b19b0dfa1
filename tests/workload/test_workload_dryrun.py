"""The plan of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from workload_files import loaded, write_tasks

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.driver.plan import make_batch
from concur_batch.workload.dryrun import plan
from concur_batch.workload.loading import Loaded
from concur_batch.workload.settings import settings_of

DEMO_MODEL = Path(__file__).parents[2] / "workloads" / "demo_model"

TOKENIZER = load_tokenizer(DEMO_MODEL)

pytestmark = pytest.mark.usefixtures("place")


def planned(found: Loaded) -> dict[str, Any]:
    batch = make_batch(found, TOKENIZER)
    return plan(found, batch.agents, batch.tasks, TOKENIZER)


def test_the_plan_says_what_would_run_and_touches_nothing(place: Path) -> None:
    write_tasks([{"question": "How many?", "answer": "4"}, {"question": "Which?", "answer": None}])
    found = loaded("verify: [{kind: answer}]\nagent: {limits: {turns: 3}}\n", overrides=("tasks.samples=3",))
    before = sorted(place.rglob("*"))
    result = planned(found)
    assert sorted(place.rglob("*")) == before
    assert orjson.loads(orjson.dumps(result)) == result
    assert (result["agents"], result["tasks"], result["samples"]) == (6, 2, 3)
    assert result["tasks_by_check"] == {"answer": 1, "none": 1}
    assert result["limits"]["turns"] == 3
    assert (result["engine"], result["policy"], result["format"]) == ("simulated", "token_window", "hermes")
    assert result["tools"][0] == "bash"
    assert "How many?" in result["first_prompt"]
    assert result["replayed_turns"] == 0
    assert result["settings"] == settings_of(found.workload)


@pytest.mark.parametrize(
    ("format", "tools"),
    [("hermes", "sandbox"), ("hermes", "synthetic"), ("react", "sandbox"), ("react", "synthetic"), ("bash", "sandbox")],
)
def test_the_first_prompt_is_the_whole_of_what_the_engine_sees(format: str, tools: str) -> None:
    found = loaded(f"agent: {{system: Be brief., format: {format}}}\ntools: {{kind: {tools}}}\n")
    result = planned(found)
    prompt = result["first_prompt"]
    assert "Be brief." in prompt
    assert "why?" in prompt
    assert prompt.endswith("assistant\n")
    assert all(name in prompt for name in result["tools"]) or format == "bash"
    assert result["first_prompt_tokens"] == len(TOKENIZER.encode(prompt))
