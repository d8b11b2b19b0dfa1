"""The synthetic model: agents of seeded lengths, decided from token ids alone."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from concur_batch.simulator.model import ChatTokens, with_length
from concur_batch.simulator.synthetic import SyntheticModel, SyntheticScript

TOKENIZER = Tokenizer.from_file(str(Path(__file__).parents[2] / "workloads" / "demo_model" / "tokenizer.json"))
CHAT = ChatTokens.of(TOKENIZER)


def run_agent(model: SyntheticModel, task: str, seed: int) -> list[str]:
    """All turns of an agent, up to its submission."""
    text = f"<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\n{task}<|im_end|>\n<|im_start|>assistant\n"
    history = TOKENIZER.encode(text).ids
    turns: list[str] = []
    while not turns or "submit" not in turns[-1]:
        output = model.reply(np.array(history, dtype=np.int32), seed)
        assert output[-1] == CHAT.end and output.tolist().count(CHAT.end) == 1
        turns.append(TOKENIZER.decode(output[:-1].tolist()))
        after = "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        history += [*output.tolist(), *TOKENIZER.encode(after).ids]
        assert len(turns) < 50
    return turns


def test_agents_call_work_step_by_step_and_then_submit() -> None:
    model = SyntheticModel(SyntheticScript(turns=(3, 3), output_words=(4, 4)), TOKENIZER, "hermes")
    turns = run_agent(model, "Task a", 1)
    calls = [json.loads(turn.partition("<tool_call>\n")[2].partition("\n</tool_call>")[0]) for turn in turns]
    assert calls == [
        {"name": "work", "arguments": {"step": 1}},
        {"name": "work", "arguments": {"step": 2}},
        {"name": "work", "arguments": {"step": 3}},
        {"name": "submit", "arguments": {"answer": "done"}},
    ]
    assert [len(turn.partition("\n<tool_call>")[0].split()) for turn in turns] == [4] * 4


def test_lengths_are_within_their_ranges_and_depend_on_task_and_seed() -> None:
    model = SyntheticModel(SyntheticScript(turns=(1, 4), output_words=(2, 9)), TOKENIZER, "react")
    runs = {(task, seed): run_agent(model, task, seed) for task in ("Task a", "Task b") for seed in range(12)}
    assert {len(turns) - 1 for turns in runs.values()} == {1, 2, 3, 4}
    assert len({tuple(turns) for turns in runs.values()}) == len(runs)
    assert runs["Task a", 3] == run_agent(model, "Task a", 3)
    assert all(turn.startswith("Thought: ") for turns in runs.values() for turn in turns)


def test_bash_agents_run_work_as_a_command() -> None:
    model = SyntheticModel(SyntheticScript(turns=(1, 1)), TOKENIZER, "bash")
    first, last = run_agent(model, "Task a", 0)
    assert first.endswith("\n```bash\nwork 1\n```") and last.endswith("\n```submit\ndone\n```")


def test_ranges_are_checked() -> None:
    with pytest.raises(ValueError, match="`turns` must be a range"):
        SyntheticScript(turns=(4, 2))


def test_a_forced_length_is_met_without_the_end_of_the_turn() -> None:
    reply = np.array([7, 8, CHAT.end], dtype=np.int32)
    assert with_length(reply, 5, CHAT.end).tolist() == [7, 8, 7, 8, 7]
    assert with_length(reply, 1, CHAT.end).tolist() == [7]
