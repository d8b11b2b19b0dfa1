"""The quickstart's tasks, each played to its end by each of its scripts with the real tools."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from concur_batch.agent.formats.action import Call
from concur_batch.agent.prompting import observation_messages
from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.simulator.conversation import Message
from concur_batch.simulator.script import Script, next_turn, read_scripts
from tools_env.sandbox import SandboxEnvironment
from tools_env.verify import verify_answer, verify_command

WORKLOADS = Path(__file__).parents[2] / "workloads"
TASKS: list[dict[str, Any]] = [
    json.loads(line) for line in (WORKLOADS / "quickstart/tasks.jsonl").read_text().splitlines()
]
SCRIPTS = read_scripts((WORKLOADS / "quickstart/scripts.jsonl").read_text().splitlines())
TEMPLATE = load_tokenizer(WORKLOADS / "demo_model").template
TOOLS = ["bash", "python", "read_file", "write_file", "edit_file", "list_files", "search_files", "submit"]
MOST_TURNS = 9


@dataclass(frozen=True)
class Played:
    """One task as one variant of its script played it."""

    task: str
    variant: int
    turns: int
    observations: tuple[str, ...]
    refusals: tuple[str, ...]  # what file tools answered to calls they could not carry out
    thoughts: tuple[str, ...]
    submitted: bool
    solved: bool


async def play(environment: SandboxEnvironment, task: dict[str, Any], script: Script, variant: int) -> Played:
    session = await environment.open(f"{task['id']}-{variant}", task["files"])
    messages = [Message("user", f"Task {task['id']}\n\n{task['question']}")]
    thoughts: list[str] = []
    refusals: list[str] = []
    answer: str | None = None
    try:
        while answer is None and len(thoughts) < MOST_TURNS:
            turn = next_turn(script.variants[variant], messages, "hermes", seed=variant)
            thoughts.append(turn.think)
            messages.append(Message("assistant", turn.think))
            results = []
            for call in turn.calls:
                result = await session.call(call.name, dict(call.arguments))
                results.append((Call(call.name, dict(call.arguments)), result))
                answer = result.answer if call.name == "submit" else answer
                if result.status != "ok" and call.name not in ("bash", "python"):
                    refusals.append(f"{call.name}: {result.output}")
                assert result.status in ("ok", "error"), result
                assert not result.truncated
            messages += [
                Message(str(said["role"]), str(said["content"]))
                for said in observation_messages(results, "hermes", TEMPLATE)
            ]
        if task["check"]["command"] is not None:
            verdict = await verify_command(session, task["check"]["command"], task["check"]["files"])
            reward = verdict.reward
        else:
            reward = verify_answer(answer, task["answer"], task["answer_kind"])
    finally:
        await session.close()
    observations = tuple(message.content for message in messages if message.role == "tool")
    return Played(
        task["id"],
        variant,
        len(thoughts),
        observations,
        tuple(refusals),
        tuple(thoughts),
        answer is not None,
        reward == 1.0,
    )


async def play_all(root: Path, runs: list[tuple[dict[str, Any], int]]) -> list[Played]:
    environment = SandboxEnvironment(root, TOOLS)
    try:
        return await asyncio.gather(*(play(environment, task, SCRIPTS[task["id"]], variant) for task, variant in runs))
    finally:
        await environment.close()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> list[Played]:
    """Every task as every variant plays it."""
    runs = [(task, variant) for task in TASKS for variant in range(len(SCRIPTS[task["id"]].variants))]
    return asyncio.run(play_all(tmp_path_factory.mktemp("played") / "workspaces", runs))


def test_tasks_are_many_and_varied() -> None:
    kinds = [task["kind"] for task in TASKS]
    assert len(TASKS) >= 56
    assert len(set(kinds)) >= 5
    assert all(kinds.count(kind) >= 8 for kind in kinds)
    assert len({task["question"] for task in TASKS}) == len(TASKS)


def test_each_task_has_a_check_and_different_scripts() -> None:
    assert [task["id"] for task in TASKS] == list(SCRIPTS)
    for task in TASKS:
        assert (task["check"]["command"] is None) != (task["answer"] is None), task["id"]
        variants = SCRIPTS[task["id"]].variants
        assert len(variants) >= 2
        assert len({str([step.calls for step in variant]) for variant in variants}) == len(variants), task["id"]


def test_every_run_is_submitted_in_time_without_a_refused_call(played: list[Played]) -> None:
    for run in played:
        assert run.submitted, run
        assert 4 <= run.turns <= MOST_TURNS, run
        assert not run.refusals, run


def test_every_task_is_solved_by_a_variant(played: list[Played]) -> None:
    assert {task["id"] for task in TASKS} - {run.task for run in played if run.solved} == set()


def test_a_few_runs_fail_honestly(played: list[Played]) -> None:
    unsolved = [run for run in played if not run.solved]
    assert 0.03 <= len(unsolved) / len(played) <= 0.12, [(run.task, run.variant) for run in unsolved]


def test_untouched_workspaces_do_not_pass(tmp_path: Path) -> None:
    """A check that accepts the files as they are given would reward doing nothing."""

    async def passing() -> list[str]:
        environment = SandboxEnvironment(tmp_path / "untouched", TOOLS)

        async def passes(task: dict[str, Any]) -> bool:
            session = await environment.open(task["id"], task["files"])
            return (await verify_command(session, task["check"]["command"], task["check"]["files"])).reward == 1.0

        try:
            tasks = [task for task in TASKS if task["check"]["command"] is not None]
            return [
                task["id"] for task, good in zip(tasks, await asyncio.gather(*map(passes, tasks)), strict=True) if good
            ]
        finally:
            await environment.close()

    assert asyncio.run(passing()) == []


def test_a_second_run_sees_the_same(played: list[Played], tmp_path: Path) -> None:
    """One variant of each task, in turn, is played again in another place."""
    runs = [(task, number % 2) for number, task in enumerate(TASKS)]
    again = asyncio.run(play_all(tmp_path / "another" / "place", runs))
    first = {(run.task, run.variant): run for run in played}
    for run in again:
        assert run == first[run.task, run.variant]


def test_scripts_act_on_what_they_see() -> None:
    """At least half the tasks have a script with an argument that is computed from observations."""
    depending = 0
    for task in TASKS:
        depending += any(
            name in str(value)
            for variant in SCRIPTS[task["id"]].variants
            for step in variant
            for call in step.calls
            for value in call.arguments.values()
            for name in ("obs[", "last")
        )
    assert depending >= len(TASKS) / 2


def test_thoughts_are_filled_in(played: list[Played]) -> None:
    for run in played:
        for thought in run.thoughts:
            assert 5 <= len(thought.split()) <= 90, (run.task, run.variant, thought)
            assert "{{" not in thought
            # What is left of a sentence when something that was looked for in an observation is not there.
            assert not re.search(r" [.,:](\s|$)|^[.,:]|``|: \.", thought), (run.task, run.variant, thought)
            assert "script error" not in thought


def test_contexts_grow(played: list[Played]) -> None:
    sizes = sorted(sum(map(len, run.observations)) + sum(map(len, run.thoughts)) for run in played)
    assert sizes[0] >= 1_500
    assert sizes[len(sizes) // 2] >= 4_000
    assert sizes[-1] <= 40_000


def test_the_data_stays_small() -> None:
    files = [path for path in (WORKLOADS / "quickstart").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 1_200_000
