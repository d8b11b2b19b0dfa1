"""The file of trajectories that a workload names: what was written is read, and nothing else is taken for one."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from foreign_files import DEMO, FILES, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from concur_batch.agent.spec import AgentSpec, Ending
from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.agent.trajectory import Exchange, Step, Trajectory
from concur_batch.driver.replay import trajectories_digest
from concur_batch.foreign.documents import Document, Unreadable, read_file
from concur_batch.foreign.file import count_agents, read_agents, tokenizer_digest, tokenizer_of, write_agents
from concur_batch.foreign.replayed import Reader, Replayed
from concur_batch.trace.files import TraceError
from concur_batch.workload.errors import shown_path
from tools_env.spec import ToolResult

_TEXT = st.text(max_size=6)
_RESULTS = st.builds(
    lambda output, seconds, code: ToolResult(
        "error" if code else "ok", output, seconds, exit_code=code, output_bytes=len(output.encode())
    ),
    _TEXT,
    st.floats(0, 100),
    st.none() | st.integers(-1, 3),
)
_EXCHANGES = st.builds(Exchange, _TEXT, st.dictionaries(_TEXT, st.integers(0, 9) | _TEXT, max_size=2), _RESULTS)
_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(lambda ids: np.array(ids, np.int32))
_STEPS = st.builds(Step, _IDS, st.integers(1, 9), st.lists(_EXCHANGES, max_size=2).map(tuple))
_ENDINGS = st.sampled_from([Ending("finished", "answer", answer="4"), Ending("limit", "turns", "limit", "3 turns")])


def replayed(number: int, steps: tuple[Step, ...], ending: Ending) -> Replayed:
    agent = AgentSpec(f"t/{number}", "t", number, number, "", trajectory=Trajectory(steps, ending))
    return Replayed(agent, "atif", "a.json", False, tuple(("drawn",) * len(step.exchanges) for step in steps))


def plain(agent: AgentSpec) -> Any:
    assert agent.trajectory is not None
    steps = [(step.new_ids.tolist(), step.output_tokens, step.exchanges) for step in agent.trajectory.steps]
    return (agent.agent_id, agent.task_id, agent.sample, agent.seed, steps, agent.trajectory.ending)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.lists(_STEPS, min_size=1, max_size=3).map(tuple), _ENDINGS), min_size=1, max_size=4))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, found: list[tuple[tuple[Step, ...], Ending]]
) -> None:
    path = tmp_path_factory.mktemp("file") / "r.parquet"
    agents = [replayed(number, steps, ending) for number, (steps, ending) in enumerate(found)]
    write_agents(path, iter(agents), "a tokenizer")
    again = read_agents(path)
    assert [plain(agent) for agent in again] == [plain(each.agent) for each in agents]
    assert trajectories_digest(again) == trajectories_digest([each.agent for each in agents])
    assert (count_agents(path), tokenizer_of(path)) == (len(agents), "a tokenizer")


def test_more_agents_than_a_group_keep_their_order(tmp_path: Path) -> None:
    step = Step(np.array([1], np.int32), 1)
    agents = [replayed(number, (step,) * (number % 3 + 1), Ending("finished", "answer")) for number in range(150)]
    write_agents(tmp_path / "r", agents, "x")
    assert [plain(agent) for agent in read_agents(tmp_path / "r")] == [plain(each.agent) for each in agents]
    assert pq.ParquetFile(tmp_path / "r").num_row_groups == 3


def test_where_reading_fails_nothing_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    write_agents(path, [replayed(0, (Step(np.array([1], np.int32), 1),), Ending("finished", "answer"))], "x")
    before = path.read_bytes()

    def broken() -> Any:
        yield replayed(1, (Step(np.array([2], np.int32), 1),), Ending("finished", "answer"))
        raise KeyError("x")

    with pytest.raises(KeyError):
        write_agents(path, broken(), "x")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["r.parquet"]


def test_what_is_no_such_file_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
    for name, told in (("text", "is no file of `concur replay-from`: "), ("other", "though it is Parquet"),
                       ("gone", "is no file of `concur replay-from`: ")):  # fmt: skip
        for act in (read_agents, count_agents, tokenizer_of):
            with pytest.raises(TraceError, match=told) as caught:
                act(tmp_path / name)
            assert "\n" not in str(caught.value)


def test_a_tokenizer_is_told_by_its_own_file_alone(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((DEMO / "tokenizer.json").read_bytes())
    assert tokenizer_digest(tmp_path) == tokenizer_digest(DEMO)


def test_a_read_trajectory_goes_through_the_file(tmp_path: Path) -> None:
    reader = Reader(load_tokenizer(DEMO), (0.2, 2.0), 0)
    agents = [reader.agent(trajectory, "atif.json") for trajectory in trajectories("atif.json")]
    write_agents(tmp_path / "r", agents, tokenizer_digest(DEMO))
    assert [plain(agent) for agent in read_agents(tmp_path / "r")] == [plain(each.agent) for each in agents]
    row = pq.read_table(tmp_path / "r").to_pylist()[0]
    assert (row["format"], row["source"], row["recorded_ids"]) == ("atif", "atif.json", False)
    assert [[call["timing"] for call in calls] for calls in row["calls"]] == [["between_steps"] * 2, ["drawn"], []]


def test_files_are_read_line_by_line_or_whole_packed_or_not(tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbf{"a": 1}\n\n[2]\n{"torn'
    (tmp_path / "x.jsonl").write_bytes(lines)
    (tmp_path / "y.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "z.traj.json.gz").write_bytes(gzip.compress(b'{"a": 1}'))
    (tmp_path / "torn.json.gz").write_bytes(gzip.compress(b'{"a": 1}' * 99)[:-12])
    for name, stem in (("x.jsonl", "x"), ("y.jsonl.gz", "y")):
        first, second, torn = read_file(tmp_path / name)
        assert first == Document(f"{tmp_path / name}:1", f"{stem}-1", {"a": 1})
        assert second == Document(f"{tmp_path / name}:3", f"{stem}-3", [2])
        assert isinstance(torn, Unreadable)
        assert torn.where == f"{tmp_path / name}:4"
        assert torn.reason.startswith("is not JSON: ")
    (whole,) = read_file(tmp_path / "z.traj.json.gz")
    assert whole == Document(str(tmp_path / "z.traj.json.gz"), "z", {"a": 1})
    for name, told in (("torn.json.gz", "compressed file ended"), ("gone", "no such file"), (".", "is a directory")):
        (found,) = read_file(tmp_path / name)
        assert isinstance(found, Unreadable)
        assert found.reason.startswith(f"cannot be read: {told}")
    (text,) = read_file(FILES / "mini_text.traj.json")
    assert isinstance(text, Document)
    assert (text.where, text.name) == (shown_path(FILES / "mini_text.traj.json"), "mini_text")
