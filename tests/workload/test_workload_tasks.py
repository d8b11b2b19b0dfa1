"""Task files, good and bad, in all three formats."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import WORKLOAD, complaints, loaded, tasks_of, write_tasks, write_workload

from concur_batch.agent.spec import AnswerCheck, CommandCheck
from concur_batch.control.member import Traits
from concur_batch.driver.plan import make_agents
from concur_batch.workload.cells import BadCell, read_files, read_group, read_priority, read_seconds
from concur_batch.workload.checks import check_of
from concur_batch.workload.loading import load, load_tasks
from concur_batch.workload.tasks import Task

pytestmark = pytest.mark.usefixtures("place")

FILES = ("tasks.files=files",)
COMMAND = "verify: [{kind: command}]\n"
ANSWER = "verify: [{kind: answer, match_column: how}]\n"


def wrong_rows(rows: list[dict[str, Any]], *more: str, overrides: tuple[str, ...] = ()) -> list[str]:
    write_tasks(rows)
    return complaints(lambda: tasks_of(*more, overrides=overrides))


def wrong_file(content: bytes, name: str = "tasks.jsonl") -> list[str]:
    Path(name).write_bytes(content)
    return complaints(lambda: tasks_of(overrides=(f"tasks.file={name}",)))


def good_file(content: bytes, name: str = "tasks.jsonl", *overrides: str) -> list[Task]:
    Path(name).write_bytes(content)
    return tasks_of(overrides=(f"tasks.file={name}", *overrides))


class TestPrompt:
    def test_columns_are_the_variables(self) -> None:
        write_tasks([{"id": "a", "question": "why?", "tags": ["x", "y"], "meta": {"level": 2}}])
        text = "tasks.prompt='{{ id }}: {{ question }} {{ tags | join(\"+\") }} {{ meta.level }}'"
        assert [task.prompt for task in tasks_of(overrides=(text,))] == ["a: why? x+y 2"]

    def test_row_reaches_names_with_spaces(self) -> None:
        write_tasks([{"the question": "why?"}])
        assert tasks_of(overrides=("tasks.prompt='{{ row[\"the question\"] }}'",))[0].prompt == "why?"

    def test_nothing_is_escaped_and_one_line_break_at_the_end_dropped(self) -> None:
        write_tasks([{"question": "a < b && 'c'"}])
        text = WORKLOAD.replace('"{{ question }}"', "|\n    Q: {{ question }}\n\n    Go.\n")
        assert load_tasks(load(write_workload(text)))[0].prompt == "Q: a < b && 'c'\n\nGo."

    def test_an_undefined_column_is_told_once_with_those_there_are(self) -> None:
        rows = [{"id": str(n), "question": "?"} for n in range(50)]
        assert wrong_rows(rows, overrides=("tasks.prompt='{{ questoin }}'",)) == [
            "--set tasks.prompt='{{ questoin }}': tasks.prompt: 'questoin' is undefined; the columns are id, question"
        ]

    def test_a_column_that_one_row_lacks(self) -> None:
        assert wrong_rows([{"question": "?"}, {"answer": "4"}]) == [
            "tasks.jsonl:2: 'question' is undefined; the columns are answer"
        ]

    def test_a_syntax_error_is_in_the_workload_file(self) -> None:
        text = WORKLOAD.replace('"{{ question }}"', "|\n    one\n    {% if %}\n")
        assert complaints(lambda: load_tasks(load(write_workload(text)))) == [
            "w.yaml:4: tasks.prompt: line 2 of the template: Expected an expression, got 'end of statement block'; "
            "mend it; a brace as such is written {{ '{' }}"
        ]

    def test_a_syntax_error_is_told_though_the_file_is_missing(self) -> None:
        text = WORKLOAD.replace("{{ question }}", "{{ question").replace("tasks.jsonl", "gone.jsonl")
        assert [line.partition(";")[0] for line in complaints(lambda: load(write_workload(text)))] == [
            "w.yaml:3: tasks.file: there is no file gone.jsonl",
            "w.yaml:4: tasks.prompt: line 1 of the template: unexpected end of template, expected 'end of print "
            "statement'.",
        ]

    def test_a_failing_expression(self) -> None:
        assert wrong_rows([{"n": 1}, {"n": 0}], overrides=("tasks.prompt='{{ 1 / n }}'",)) == [
            "tasks.jsonl:2: ZeroDivisionError: division by zero; the columns are n"
        ]

    def test_a_template_cannot_reach_into_python(self) -> None:
        [line] = wrong_rows([{"n": 1}], overrides=("tasks.prompt='{{ n.__class__.__mro__ }}'",))
        assert "unsafe" in line

    def test_an_empty_prompt(self) -> None:
        assert wrong_rows([{"question": "?"}, {"question": " \n"}]) == [
            "tasks.jsonl:2: the prompt is empty; fill the columns which the template uses"
        ]


class TestId:
    def test_from_its_column_or_the_row_number(self) -> None:
        write_tasks([{"id": 7, "question": "?"}, {"id": "a/b ü", "question": "?"}])
        assert [task.id for task in tasks_of()] == ["7", "a/b ü"]
        write_tasks([{"question": "?"}, {"question": "?"}])
        assert [(task.id, task.row_number) for task in tasks_of()] == [("1", 1), ("2", 2)]

    def test_a_named_column_must_be_there(self) -> None:
        rows = [{"name": "a", "question": "?"}]
        assert wrong_rows(rows, overrides=("tasks.id=nmae",)) == [
            "--set tasks.id=nmae: tasks.id: tasks.jsonl has no column `nmae`; did you mean `name`?"
        ]

    def test_duplicates_are_told_with_both_lines(self) -> None:
        rows = [{"id": "1", "question": "?"}, {"id": "b", "question": "?"}, {"id": 1, "question": "?"}]
        assert wrong_rows(rows) == [
            "tasks.jsonl:3: id: the id 1 stands already in line 1; give every task an id of its own"
        ]

    def test_what_is_no_id(self) -> None:
        ids: list[Any] = ["", None, 1.5, True, ["a"], "a\nb", "x" * 201]
        rows = [{"id": value, "question": "?"} for value in ids] + [{"question": "?"}]
        assert wrong_rows(rows) == [
            "tasks.jsonl:1: id: is empty; give every task an id, or drop the column to count the rows",
            "tasks.jsonl:2: id: null is no id; give a text or a whole number",
            "tasks.jsonl:3: id: 1.5 is no id; give a text or a whole number",
            "tasks.jsonl:4: id: true is no id; give a text or a whole number",
            'tasks.jsonl:5: id: ["a"] is no id; give a text or a whole number',
            'tasks.jsonl:6: id: "a\\nb" holds a control character; delete it',
            "tasks.jsonl:7: id: has 201 characters; give at most 200",
            "tasks.jsonl:8: id: the row has no id; give it one, as the other rows have",
        ]


class TestFiles:
    def test_an_object_its_json_text_or_nothing(self) -> None:
        files = {"src/a.py": "x = 1\n", "ü.txt": ""}
        write_tasks([{"question": "?", "files": value} for value in (files, json.dumps(files), None, {}, "")])
        assert [task.files for task in tasks_of(overrides=FILES)] == [files, files, {}, {}, {}]

    @pytest.mark.parametrize(
        ("files", "told"),
        [
            (
                {"/etc/passwd": ""},
                'the path "/etc/passwd" is absolute; give a path under the workspace, as src/main.py',
            ),
            (
                {"a/../../b": ""},
                'the path "a/../../b" leads out of the workspace; give a path under the workspace, as src/main.py',
            ),
            ({"a//b": ""}, 'the path "a//b" has an empty part; give a path under the workspace, as src/main.py'),
            ({"./b": ""}, 'the path "./b" has an empty part; give a path under the workspace, as src/main.py'),
            ({"": ""}, 'the path "" has an empty part; give a path under the workspace, as src/main.py'),
            (
                {"a\x00b": ""},
                'the path "a\\u0000b" holds a control character; give a path under the workspace, as src/main.py',
            ),
            ({"a": 5}, 'the file "a" is 5, not a text; give its text in quotes'),
            ({"a": None}, 'the file "a" is null, not a text; give its text in quotes'),
            ({"a": "", "a/b": ""}, '"a" is a file and the directory of "a/b"; rename one of them'),
            (["a"], '["a"] is not an object; give an object from path to text'),
            ("{", '"{" is not JSON: unexpected end of data; give an object from path to text'),
        ],
    )
    def test_what_is_no_file(self, files: Any, told: str) -> None:
        assert wrong_rows([{"question": "?", "files": files}], overrides=FILES) == [f"tasks.jsonl:1: files: {told}"]

    def test_a_missing_column_is_told_once(self) -> None:
        assert wrong_rows([{"question": "?"}, {"question": "!"}], overrides=FILES) == [
            "--set tasks.files=files: tasks.files: tasks.jsonl has no column `files`; the columns are question"
        ]

    @given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "/", "\n", "x" * 300]), max_size=5).map("/".join))
    def test_no_accepted_path_leaves_the_workspace(self, path: str) -> None:
        try:
            read_files({path: ""})
        except BadCell:
            return
        root = Path("/workspace")
        assert (root / path).is_relative_to(root)
        assert set(Path(path).parts) <= {"a", "b"}


class TestChecks:
    def test_the_first_that_applies(self) -> None:
        write_tasks(
            [
                {"question": "?", "check": {"command": "true", "files": {"t.py": "1"}}, "answer": "x", "how": None},
                {"question": "?", "check": {"command": None, "files": {}}, "answer": 4, "how": "number"},
                {"question": "?", "check": None, "answer": "^a+$", "how": "regex"},
                {"question": "?", "check": json.dumps({"command": "false"}), "answer": None, "how": None},
                {"question": "?", "answer": None},
            ]
        )
        checks = "verify: [{kind: command, deadline_seconds: 5}, {kind: answer, match_column: how}]\n"
        found = loaded(checks)
        assert [check_of(task, found.workload.verify) for task in load_tasks(found)] == [
            CommandCheck("true", {"t.py": "1"}, 5),
            AnswerCheck("4", "number"),
            AnswerCheck("^a+$", "regex"),
            CommandCheck("false", {}, 5),
            None,
        ]

    @pytest.mark.parametrize(
        ("check", "told"),
        [
            ("true", '"true" is not JSON'),
            (["true"], '["true"] is not an object; give {"command": ..., "files": {...}}, or null'),
            ({"comand": "true"}, 'has the unknown key "comand"; give {"command": ..., "files": {...}}, or null'),
            ({"command": ""}, 'the command is ""; give {"command": ..., "files": {...}}, or null'),
            ({"command": ["true"]}, 'the command is ["true"]; give {"command": ..., "files": {...}}, or null'),
            (
                {"command": "true", "files": {"../x": ""}},
                'the path "../x" leads out of the workspace; give a path under the workspace, as src/main.py',
            ),
        ],
    )
    def test_what_is_no_command(self, check: Any, told: str) -> None:
        if check == "true":  # as JSON, it is a truth value
            told = 'true is not an object; give {"command": ..., "files": {...}}, or null'
        assert wrong_rows([{"question": "?", "check": check}], COMMAND) == [f"tasks.jsonl:1: check: {told}"]

    @pytest.mark.parametrize(
        ("answer", "how", "told"),
        [
            (True, "exact", "true is no answer; give a text, a number, or null"),
            (["a"], "exact", '["a"] is no answer; give a text, a number, or null'),
            ("four", "number", '"four" is not one number; give a number, or compare it with `match: exact`'),
            ("nan", "number", '"nan" is not one number; give a number, or compare it with `match: exact`'),
            ("3 to 4", "number", '"3 to 4" is not one number; give a number, or compare it with `match: exact`'),
            ("(", "regex", '"(" is no regular expression; mend it, or compare it with `match: exact`'),
            ("a", "exactly", '"exactly" is no way to compare answers; did you mean `exact`?'),
        ],
    )
    def test_what_is_no_answer(self, answer: Any, how: str, told: str) -> None:
        [line] = wrong_rows([{"question": "?", "answer": answer, "how": how}], ANSWER)
        assert line == f"tasks.jsonl:1: answer: {told}"

    def test_missing_columns(self) -> None:
        assert wrong_rows(
            [{"question": "?", "answers": "4"}], "verify:\n- {kind: answer,\n   match_column: hwo}\n"
        ) == [
            "w.yaml:12: verify.0.column: tasks.jsonl has no column `answer`; did you mean `answers`?",
            "w.yaml:13: verify.0.match_column: tasks.jsonl has no column `hwo`; the columns are question, answers",
        ]


class TestOrder:
    """Columns that say who is admitted first."""

    ALL = ("tasks.group=team", "tasks.priority=rank", "tasks.deadline=due")

    def test_of_each_row_and_of_rows_without(self) -> None:
        write_tasks(
            [
                {"question": "?", "team": "x", "rank": 2, "due": 90},
                {"question": "?", "team": 7, "rank": -1, "due": 0.5},
                {"question": "?", "team": None, "rank": None, "due": None},
                {"question": "?"},
            ]
        )
        assert [(task.group, task.priority, task.deadline_seconds) for task in tasks_of(overrides=self.ALL)] == [
            ("x", 2, 90.0),
            ("7", -1, 0.5),
            ("", 0, None),
            ("", 0, None),
        ]

    def test_csv_has_text(self) -> None:
        content = b"question,team,rank,due\n?,x,2,90\n?,,,\n"
        tasks = good_file(content, "t.csv", *self.ALL)
        assert [(task.group, task.priority, task.deadline_seconds) for task in tasks] == [("x", 2, 90.0), ("", 0, None)]

    def test_without_the_settings_such_columns_mean_nothing(self) -> None:
        write_tasks([{"question": "?", "group": "x", "priority": 2, "deadline": 90}])
        [task] = tasks_of()
        assert (task.group, task.priority, task.deadline_seconds) == ("", 0, None)

    def test_agents_carry_them(self) -> None:
        write_tasks([{"question": "?", "team": "x", "rank": 2, "due": 90}])
        loading = loaded(overrides=(*self.ALL, "tasks.samples=2"))
        assert loading.workload.tasks is not None
        agents = make_agents(loading.workload.tasks, [], load_tasks(loading))
        assert [agent.traits for agent in agents] == [Traits(2, "x", 90.0)] * 2

    @pytest.mark.parametrize(
        ("row", "told"),
        [
            ({"team": True}, "team: true is no id; give a text or a whole number"),
            ({"rank": 1.5}, "rank: 1.5 is no whole number; give one, higher for tasks to be admitted first"),
            ({"rank": 2**63}, "rank: 9223372036854775808 is beyond 64 bits; give a smaller one"),
            ({"rank": True}, "rank: true is no whole number; give one, higher for tasks to be admitted first"),
            ({"rank": "soon"}, 'rank: "soon" is no whole number; give one, higher for tasks to be admitted first'),
            ({"due": 0}, "due: 0 is no number of seconds above 0; give one, from the run's start"),
            ({"due": "nan"}, 'due: "nan" is no number of seconds above 0; give one, from the run\'s start'),
            ({"due": "inf"}, 'due: "inf" is no number of seconds above 0; give one, from the run\'s start'),
            ({"due": True}, "due: true is no number of seconds above 0; give one, from the run's start"),
            ({"due": [1]}, "due: [1] is no number of seconds above 0; give one, from the run's start"),
        ],
    )
    def test_what_is_none(self, row: dict[str, Any], told: str) -> None:
        full = {"question": "?", "team": "x", "rank": 1, "due": 1}
        assert wrong_rows([{**full, **row}], overrides=self.ALL) == [f"tasks.jsonl:1: {told}"]

    def test_a_column_that_no_row_has(self) -> None:
        assert wrong_rows([{"question": "?", "rnk": 1}], overrides=("tasks.priority=rank",)) == [
            "--set tasks.priority=rank: tasks.priority: tasks.jsonl has no column `rank`; did you mean `rnk`?"
        ]

    @given(st.none() | st.booleans() | st.floats() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.lists(st.none()))
    def test_any_cell_is_read_or_refused(self, cell: Any) -> None:
        for read, good in (
            (read_group, lambda value: value == "" or value.strip()),
            (read_priority, lambda value: isinstance(value, int)),
            (read_seconds, lambda value: value is None or 0 < value < float("inf")),
        ):
            try:
                value = read(cell)
            except BadCell as error:
                assert error.reason
                assert error.mend
            else:
                assert good(value)


class TestJsonl:
    def test_blank_lines_crlf_and_byte_order_mark(self) -> None:
        tasks = good_file(b'\xef\xbb\xbf{"question": "a"}\r\n\r\n  \n{"question": "b"}')
        assert [(task.prompt, task.row_number) for task in tasks] == [("a", 1), ("b", 2)]

    def test_every_bad_line_is_told(self) -> None:
        assert wrong_file(
            b'{"question": "a"}\n\n[1]\n"x"\n{"question": }\n\xff\n{"question": "c"}\n{"question": "d'
        ) == [
            'tasks.jsonl:3: the line is a list, not an object; write {"id": ..., ...}',
            'tasks.jsonl:4: the line is a single value, not an object; write {"id": ..., ...}',
            "tasks.jsonl:5: column 14: is not JSON: unexpected character, expected a JSON value; write one JSON object "
            "a line",
            "tasks.jsonl:6: the line is not UTF-8; save the file as UTF-8",
            "tasks.jsonl:8: the last line is torn: unexpected end of data; complete or delete it",
        ]

    @pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
    def test_no_rows(self, content: bytes) -> None:
        assert wrong_file(content) == ["tasks.jsonl: the file has no rows; write one task a row"]

    def test_the_limit_reads_no_further(self) -> None:
        assert len(good_file(b'{"question": "a"}\n{"question": "b"}\nbroken', "tasks.jsonl", "tasks.limit=2")) == 2


class TestCsv:
    def test_what_spreadsheets_write(self) -> None:
        tasks = good_file(b'\xef\xbb\xbfid,question\r\na,"one, ""two""\r\nthree"\r\n\r\nb,\xc3\xbc\r\n', "t.csv")
        assert [(task.id, task.prompt) for task in tasks] == [("a", 'one, "two"\r\nthree'), ("b", "ü")]

    def test_lines_count_the_breaks_within_cells(self) -> None:
        assert wrong_file(b'id,question\na,"x\ny\nz"\nb,1,2\n\na,?\nc\n', "t.csv") == [
            "t.csv:5: the row has 3 cells, the header 2; write as many, with quotes round a cell which holds a comma",
            "t.csv:7: id: the id a stands already in line 2; give every task an id of its own",
            "t.csv:8: the row has 1 cell, the header 2; write as many, with quotes round a cell which holds a comma",
        ]

    def test_an_open_quote(self) -> None:
        assert wrong_file(b'id,question\na,?\nb,"open\n\n', "t.csv") == [
            "t.csv:3: is not CSV from here on: unexpected end of data; close the quoted cell, and double the quotes "
            "within it"
        ]

    def test_not_utf8(self) -> None:
        assert wrong_file(b"id,question\na,\xe9\n", "t.csv") == [
            "t.csv:2: the line is not UTF-8; save the file as UTF-8"
        ]

    def test_header(self) -> None:
        assert wrong_file(b"id,id\na,b\n", "t.csv") == [
            "t.csv:1: the header names 'id' twice; give every column a name of its own"
        ]
        assert wrong_file(b"id,\na,b\n", "t.csv") == [
            "t.csv:1: the header has a column without a name; give every column a name of its own"
        ]
        for content in (b"", b"id,question\n"):
            assert wrong_file(content, "t.csv") == ["t.csv: the file has no rows; write one task a row"]

    def test_cells_of_any_length_and_json_in_them(self) -> None:
        files = {"big.txt": "x" * 300_000}
        with Path("t.csv").open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["question", "files", "check", "answer"])
            writer.writerow(["?", json.dumps(files), json.dumps({"command": "true"}), ""])
            writer.writerow(["?", "", "", "4"])
        verify = "verify: [{kind: command}, {kind: answer}]\n"
        first, second = tasks_of(verify, overrides=("tasks.file=t.csv", *FILES))
        assert first.files == files
        assert first.columns["check"] == {"command": "true", "files": {}}
        assert first.columns["answer"] is None
        assert (second.files, second.columns["check"], second.columns["answer"]) == ({}, None, "4")


class TestParquet:
    @staticmethod
    def write(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> tuple[str, ...]:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), "t.parquet")
        return ("tasks.file=t.parquet", *FILES)

    def test_structs_lose_the_keys_of_other_rows(self) -> None:
        rows = [
            {"question": "?", "files": {"a.py": "1"}, "check": {"command": "true", "files": {"t.py": "x"}}},
            {"question": "?", "files": {"b.py": "2"}, "check": {"command": "false", "files": {"u.py": "y"}}},
            {"question": "?", "files": None, "check": None},
        ]
        tasks = tasks_of(COMMAND, overrides=self.write(rows))
        assert [task.files for task in tasks] == [{"a.py": "1"}, {"b.py": "2"}, {}]
        assert [task.columns["check"] for task in tasks] == [rows[0]["check"], rows[1]["check"], None]

    def test_maps_and_json_text(self) -> None:
        kind = pa.map_(pa.string(), pa.string())
        schema = pa.schema([("question", pa.string()), ("files", kind), ("check", pa.string())])
        rows = [{"question": "?", "files": [("a", "1"), ("b", "2")], "check": '{"command": "true"}'}]
        [task] = tasks_of(COMMAND, overrides=self.write(rows, schema))
        assert task.files == {"a": "1", "b": "2"}
        assert task.columns["check"] == {"command": "true", "files": {}}

    def test_lists_of_structs_in_the_template(self) -> None:
        rows = [{"question": [{"role": "user", "text": "hi"}, {"role": "tool", "name": "t"}], "files": None}]
        template = "tasks.prompt='{% for m in question %}{{ m.role }}{{ m.keys() | list | length }} {% endfor %}'"
        [task] = tasks_of(overrides=(*self.write(rows), template))
        assert task.prompt == "user2 tool2 "

    def test_a_bad_row_is_named_by_its_number(self) -> None:
        rows = [{"id": 1, "question": "?", "files": {"a": "1"}}, {"id": 1, "question": "", "files": {"/a": "1"}}]
        assert complaints(lambda: tasks_of(overrides=self.write(rows))) == [
            "t.parquet: row 2, id: the id 1 stands already in row 1; give every task an id of its own",
            "t.parquet: row 2: the prompt is empty; fill the columns which the template uses",
            't.parquet: row 2, files: the path "/a" is absolute; give a path under the workspace, as src/main.py',
        ]

    def test_not_parquet(self) -> None:
        [line] = wrong_file(b"question\nwhy?\n", "t.parquet")
        assert line.startswith("t.parquet: cannot be read as Parquet: ")
        assert line.endswith("; write the file anew")

    def test_torn(self) -> None:
        overrides = self.write([{"question": "?" * 1000, "files": None}])
        Path("t.parquet").write_bytes(Path("t.parquet").read_bytes()[:-20])
        [line] = complaints(lambda: tasks_of(overrides=overrides))
        assert line.startswith("t.parquet: cannot be read as Parquet: ")

    def test_no_rows(self) -> None:
        schema = pa.schema([("question", pa.string()), ("files", pa.string())])
        assert complaints(lambda: tasks_of(overrides=self.write([], schema))) == [
            "t.parquet: the file has no rows; write one task a row"
        ]


def test_many_bad_rows_are_counted() -> None:
    lines = wrong_rows([{"question": ""} for _ in range(1000)])
    assert len(lines) == 21
    assert lines[-1] == "and 980 more"
