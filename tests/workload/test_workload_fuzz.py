"""Whatever stands in a workload file or a task file: it is read, or refused in lines; never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from workload_files import WORKLOAD

from concur_batch.workload.errors import InputError
from concur_batch.workload.loading import load, load_tasks
from concur_batch.workload.source import read_yaml

pytestmark = pytest.mark.usefixtures("place")

# The directory is made once for all examples of a test: each writes its files anew.
every_example = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)

KEYS = """
    name tasks file prompt id files samples limit seed model tokenizer sampling temperature stop extra engine kind url
    api_key launch python args env script synthetic turns cost pool_tokens agent format system system_file limits hosts
    tools names wait_seconds control policy cap alpha beta u_low u_high max_window verify column match match_column
    output storage 0 1 oops
""".split()  # noqa: SIM905 - a paragraph reads better than a hundred quoted words
WORDS = [
    "",
    "~",
    "~nobody/x",
    "a\0b",
    "tokenizer",
    "s.jsonl",
    "tasks.jsonl",
    "sglang",
    "simulated",
    "concur",
    "none",
    "bash",
]

keys = st.sampled_from(KEYS)
scalars = (
    st.sampled_from(WORDS)
    | st.none()
    | st.booleans()
    | st.integers(-2, 2**70)
    | st.floats(width=16)
    | st.text(st.characters(), max_size=5)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)


def read_or_refused(*overrides: str) -> None:
    try:
        load_tasks(load("w.yaml", overrides))
    except InputError as error:
        lines = str(error).splitlines()
        assert lines
        assert len(lines) == min(len(error.problems), 21)
        for problem in error.problems:
            assert str(problem).isprintable()
            assert problem.reason
            assert problem.mend


@every_example
@given(st.lists(st.tuples(st.lists(keys, min_size=1, max_size=3), values), min_size=1, max_size=4))
@example([(["engine"], {"kind": []})])
@example([(["control"], {"policy": {}})])
@example([(["verify"], [None]), (["tools"], 5)])
@example([(["tasks", "prompt"], "{{ question.x.y }}")])
def test_workloads_of_any_shape(changes: list[tuple[list[str], Any]]) -> None:
    document = read_yaml(WORKLOAD, "w.yaml").value
    for path, value in changes:
        block = document
        for key in path[:-1]:
            if not isinstance(block.get(key), dict):
                block[key] = {}
            block = block[key]
        block[path[-1]] = value
    Path("w.yaml").write_text(json.dumps(document))
    read_or_refused()


@every_example
@given(st.lists(st.tuples(st.lists(keys, min_size=1, max_size=3).map(".".join), values.map(json.dumps)), max_size=4))
def test_overrides_of_any_shape(overrides: list[tuple[str, str]]) -> None:
    Path("w.yaml").write_text(WORKLOAD + "verify: [{kind: answer}]\n")
    read_or_refused(*(f"{key}={value}" for key, value in overrides))


@every_example
@given(st.text(st.sampled_from("ab:- \n\t[]{}&*!|>'\"#%@,?0.\\é\x85"), max_size=60) | st.binary(max_size=40))
def test_files_of_any_content(content: str | bytes) -> None:
    Path("w.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    read_or_refused()


lines = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
rows = st.fixed_dictionaries(
    {}, optional={"id": lines, "question": lines, "files": lines, "check": lines, "answer": lines, "how": lines}
)


@every_example
@given(st.lists(rows, max_size=4), st.sampled_from(["exact", "number", "regex"]))
def test_tasks_of_any_shape(rows: list[dict[str, Any]], match: str) -> None:
    Path("tasks.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    verify = f"verify: [{{kind: command}}, {{kind: answer, match: {match}, match_column: how}}]\n"
    Path("w.yaml").write_text(WORKLOAD + verify)
    read_or_refused("tasks.files=files")


@every_example
@given(st.sampled_from(["jsonl", "csv", "parquet"]), st.binary(max_size=60) | st.text('a,"\n\r{}:0', max_size=40))
def test_task_files_of_any_content(suffix: str, content: bytes | str) -> None:
    Path(f"t.{suffix}").write_bytes(content if isinstance(content, bytes) else content.encode())
    Path("w.yaml").write_text(WORKLOAD)
    read_or_refused(f"tasks.file=t.{suffix}")
