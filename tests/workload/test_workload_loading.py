"""What a user sees for each kind of mistake in workload.yaml: the whole line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from workload_files import WORKLOAD, complaints, loaded, write_tasks, write_workload

from concur_batch.workload.errors import InputError, Problem
from concur_batch.workload.loading import load
from concur_batch.workload.schema import NoControl, SandboxTools, TokenWindow, Workload

pytestmark = pytest.mark.usefixtures("place")


def mistakes(*more: str, overrides: tuple[str, ...] = ()) -> list[str]:
    return complaints(lambda: loaded(*more, overrides=overrides))


def replaced(old: str, new: str) -> list[str]:
    assert old in WORKLOAD
    return complaints(lambda: load(write_workload(WORKLOAD.replace(old, new))))


def test_a_workload_is_read_with_its_defaults(place: Path) -> None:
    found = loaded()
    assert found.workload.tasks.file == place / "tasks.jsonl"
    assert found.workload.model.tokenizer == place / "tokenizer"
    assert found.workload.output == place / "runs"
    assert isinstance(found.workload.control, TokenWindow)
    assert found.base_dir == place
    assert found.path == Path("w.yaml")


def test_a_read_workload_survives_its_own_json() -> None:
    workload = loaded("control: {policy: request_cap, cap: 3}\nverify: [{kind: answer}]\n").workload
    assert Workload.model_validate_json(workload.model_dump_json()) == workload


def test_paths_start_at_the_workload_file_and_output_at_the_current_directory(place: Path) -> None:
    inner = place / "inner"
    inner.mkdir()
    (inner / "w.yaml").write_text(
        WORKLOAD.replace("tasks.jsonl", "../tasks.jsonl")
        .replace("tokenizer: ", "tokenizer: ../")
        .replace("script: ", "script: ../")
        + "output: out\n"
    )
    workload = load("inner/w.yaml").workload
    assert workload.tasks.file == place / "tasks.jsonl"
    assert workload.output == place / "out"


def test_a_symlinked_interpreter_stays_the_link(place: Path) -> None:
    """An interpreter of a virtual environment is a link; what it points to knows nothing of the environment."""
    (place / "python").symlink_to(sys.executable)
    (place / "model").mkdir()
    engine = "engine: {kind: sglang, launch: {python: python, model: model}}\n"
    text = WORKLOAD.partition("engine:")[0] + engine
    launch = load(write_workload(text)).workload.engine
    assert launch.launch is not None  # type: ignore[union-attr]
    assert launch.launch.python == place / "python"  # type: ignore[union-attr]


def test_home_is_understood(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    assert load(write_workload(WORKLOAD.replace("file: ", "file: ~/"))).workload.tasks.file == place / "tasks.jsonl"


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            "control:\n  policy: concur\n  u_high: 1.5\n",
            "w.yaml:13: control.u_high: 1.5 is above 1; give a share from 0 to 1",
        ),
        (
            "control:\n  policy: concr\n",
            'w.yaml:12: control.policy: "concr" is not a choice here; did you mean `concur`?',
        ),
        (
            "control:\n  policy: zzz\n",
            'w.yaml:12: control.policy: "zzz" is not a choice here; give one of none, request_cap, agent_cap, concur, '
            "steady, token_window",
        ),
        ("control:\n  policy: agent_cap\n", "w.yaml:11: control.cap: is missing; add it: Active agents in a pool"),
        (
            "control:\n  polcy: none\n",
            "w.yaml:12: control.polcy: is no key of this block; did you mean `policy`?",
        ),
        (
            "control:\n  policy: none\n  beta: 0.5\n",
            "w.yaml:13: control.beta: is no key of this block; it belongs to policy concur and steady",
        ),
        (
            "control:\n  policy: none\n  cap: 3\n",
            "w.yaml:13: control.cap: is no key of this block; it belongs to policy request_cap and agent_cap",
        ),
        (
            "control: {policy: steady, ewma_weight: 0}\n",
            "w.yaml:11: control.ewma_weight: 0 is not above 0; give a number, above 0 and at most 1",
        ),
        (
            "control: {policy: steady, u_low: 0.6, u_high: 0.5}\n",
            "w.yaml:11: control: u_low 0.6 is above u_high 0.5; give u_low <= u_high",
        ),
        (
            "control: {policy: concur, max_window: 3, min_window: 4}\n",
            "w.yaml:11: control: max_window 3 is below min_window 4; raise max_window",
        ),
        (
            "control:\n  policy: none\n  extensions:\n    longest_pause: 3\n",
            "w.yaml:14: control.extensions.longest_pause: is no key of this block; did you mean "
            "`longest_pause_seconds`?",
        ),
        (
            "control:\n  policy: none\n  extensions:\n    shares: {x: 0}\n",
            "w.yaml:14: control.extensions.shares.x: 0 is not above 0; give a number, above 0",
        ),
        (
            "control: {policy: concur, victim_order: newst}\n",
            'w.yaml:11: control.victim_order: "newst" is not a choice here; did you mean `newest`?',
        ),
        (
            "control: {policy: concur, u_low: 0.6, u_high: 0.5}\n",
            "w.yaml:11: control: u_low 0.6 is above u_high 0.5; give u_low <= u_high",
        ),
        (
            "agent:\n  limits:\n    turns: '5'\n",
            'w.yaml:13: agent.limits.turns: "5" is a text; give a whole number, at least 1, without quotes',
        ),
        (
            "agent:\n  limits:\n    turns: true\n",
            "w.yaml:13: agent.limits.turns: true is a truth value; give a whole number, at least 1",
        ),
        (
            "agent:\n  limits:\n    turns: 2.5\n",
            "w.yaml:13: agent.limits.turns: 2.5 is a number; give a whole number, at least 1",
        ),
        ("agent:\n  attempts: 0\n", "w.yaml:12: agent.attempts: 0 is below 1; give a whole number, at least 1"),
        (
            "agent:\n  attempts:\n",
            "w.yaml:12: agent.attempts: has no value; give a whole number, at least 1, or leave the key out",
        ),
        ("agent:\n", "w.yaml:11: agent: has no value; give a block of keys, or leave the key out"),
        ("agent: [react]\n", "w.yaml:11: agent: is a list; give a block of keys"),
        ("agent:\n  system: 5\n", 'w.yaml:12: agent.system: 5 is a number; give a text: put it in quotes, "5"'),
        (
            "agent:\n  format: hermess\n",
            'w.yaml:12: agent.format: "hermess" is not a choice here; did you mean `hermes`?',
        ),
        (
            "agent: {system: x, system_file: tasks.jsonl}\n",
            "w.yaml:11: agent: has both `system` and `system_file`; keep one",
        ),
        (
            "agent: {limits: {wall_seconds: .inf}}\n",
            "w.yaml:11: agent.limits.wall_seconds: Infinity is a number; give a number, above 0",
        ),
        (
            "tools:\n  kind: sandbox\n  names: [bash,\n    pyton]\n",
            'w.yaml:14: tools.names.1: "pyton" is not a choice here; did you mean `python`?',
        ),
        ("tools: {names: []}\n", "w.yaml:11: tools.names: has 0 items; give at least one"),
        (
            "tools: {kind: synthetic, wait_seconds: [1]}\n",
            "w.yaml:11: tools.wait_seconds: has 1 item; give 2",
        ),
        (
            "tools: {kind: synthetic, observation_words: [1, 2, 3]}\n",
            "w.yaml:11: tools.observation_words: has 3 items; give 2",
        ),
        (
            "tools: {kind: synthetic, observation_words: [9, 2]}\n",
            "w.yaml:11: tools.observation_words: the least, 9, is above the most, 2; give [least, most]",
        ),
        (
            "verify:\n- column: x\n- kind: answer\n  match: exacty\n",
            "w.yaml:12: verify.0.kind: is missing; add it: one of command, answer",
        ),
        ("verify: {kind: answer}\n", "w.yaml:11: verify: is a block of keys; give a list"),
        (
            "extra: 1\n",
            "w.yaml:11: extra: is no key of this block; the keys here are name, tasks, replay, model, engine, agent, "
            "tools, control, verify, simulate, output, storage",
        ),
        (
            "storage: /mnt/tables\n",
            "w.yaml:11: storage: '/mnt/tables' is no URI; give one as s3://bucket/prefix or file:///directory",
        ),
        (
            "storage: s3://key:secret@bucket/runs\n",
            "w.yaml:11: storage: holds credentials, which the manifest would show; put them into the environment",
        ),
    ],
)
def test_a_mistake_is_one_line_with_its_place_and_mend(more: str, line: str) -> None:
    assert mistakes(more)[0] == line


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        (
            "name: demo",
            "name: my run",
            [
                'w.yaml:1: name: "my run" is not allowed here; give letters, digits, `.`, `_` and `-`, starting with a '
                "letter or a digit"
            ],
        ),
        (
            '  prompt: "{{ question }}"\n',
            "",
            [
                "w.yaml:2: tasks.prompt: is missing; add it: Jinja2 template of the first user message, over the "
                "row's columns"
            ],
        ),
        (
            "  script: s.jsonl\n",
            "",
            [
                "w.yaml:8: engine: needs exactly one of `script` and `synthetic`; give `synthetic: {}` for a load "
                "without a script"
            ],
        ),
        (
            "  script: s.jsonl\n",
            "  script: s.jsonl\n  pool_tokens: many\n",
            ['w.yaml:11: engine.pool_tokens: "many" is a text; give a whole number, at least 1, without quotes'],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: sglang\n  url: gpu-7:30000",
            [
                'w.yaml:10: engine.url: "gpu-7:30000" is not allowed here; give a URL which starts with http:// or '
                "https://"
            ],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: sglang",
            [
                "w.yaml:8: engine: needs exactly one of `url`, `urls` and `launch`; give `url` for a server that runs, "
                "`urls` for several replicas, or `launch` to start one"
            ],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: sglang\n  url: http://a\n  urls: [http://b]",
            [
                "w.yaml:8: engine: needs exactly one of `url`, `urls` and `launch`; give `url` for a server that runs, "
                "`urls` for several replicas, or `launch` to start one"
            ],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: sglang\n  urls: [http://a, http://b, http://a]",
            ["w.yaml:8: engine: `urls` names a replica twice; name each once"],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: vllm",
            [
                "w.yaml:8: engine: needs exactly one of `url`, `urls` and `launch`; give `url` for a server that runs, "
                "`urls` for several replicas, or `launch` to start one"
            ],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: sglang\n  launch: {python: /bin/sh, model: tokenizer, hicache: {ratio: 2, size_gb: 8}}",
            ["w.yaml:10: engine.launch.hicache: has both `ratio` and `size_gb`; keep one"],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: vllm\n  launch: {python: /bin/sh, model: tokenizer, nodes: 2, tp: 3}",
            ["w.yaml:10: engine.launch: 3 (tp × dp) cannot be shared evenly by 2 nodes; give `nodes` that divide it"],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: vllm\n  launch: {python: /bin/sh, model: tokenizer, hicache: {ratio: 2}}",
            [
                "w.yaml:10: engine.launch.hicache: is no key of this block; the keys here are python, model, replicas, "
                "nodes, tp, dp, gpus, args, env, ready_seconds"
            ],
        ),
        (
            "kind: simulated\n  script: s.jsonl",
            "kind: sglang\n  urls: [http://a, gpu-7:30000]",
            [
                'w.yaml:10: engine.urls.1: "gpu-7:30000" is not allowed here; give a URL which starts with http:// or '
                "https://"
            ],
        ),
        (
            "  script: s.jsonl\n",
            "  script: s.jsonl\n  dp_size: 0\n",
            ["w.yaml:11: engine.dp_size: 0 is below 1; give a whole number, at least 1"],
        ),
        (
            "  script: s.jsonl\n",
            "  script: s.jsonl\n  replicas: 1.5\n",
            ["w.yaml:11: engine.replicas: 1.5 is a number; give a whole number, at least 1"],
        ),
    ],
)
def test_a_mistake_in_a_needed_block(old: str, new: str, lines: list[str]) -> None:
    assert replaced(old, new) == lines


def test_every_mistake_is_told_at_once_in_order_of_lines() -> None:
    write_tasks([{"id": "a", "question": "?"}, {"id": "a", "question": ""}])
    text = WORKLOAD.replace("tokenizer: tokenizer", "tokenizer: gone").replace("name: demo", "nam: demo")
    assert complaints(
        lambda: load(write_workload(text, "agent: {format: x}\n"), ["control.admit_share=2", "nonsense"])
    ) == [
        "w.yaml:1: name: is missing; add it: Names the run directory",
        "w.yaml:1: nam: is no key of this block; did you mean `name`?",
        "w.yaml:7: model.tokenizer: there is no directory gone; make it, or mend the path: it is relative to the "
        "workload file",
        'w.yaml:11: agent.format: "x" is not a choice here; give one of react, hermes, bash',
        "--set nonsense: is not of the form key.path=value; write --set control.policy=none",
        "--set control.admit_share=2: control.admit_share: 2 is above 1; give a share from 0 to 1",
        "tasks.jsonl:2: id: the id a stands already in line 1; give every task an id of its own",
        "tasks.jsonl:2: the prompt is empty; fill the columns which the template uses",
    ]


def test_only_the_first_twenty_problems_are_shown() -> None:
    error = InputError(Problem("t.jsonl", number, "id", "is empty", "fill it") for number in range(1, 27))
    lines = str(error).splitlines()
    assert len(lines) == 21
    assert lines[19] == "t.jsonl:20: id: is empty; fill it"
    assert lines[20] == "and 6 more"
    assert len(error.problems) == 26


def test_a_problem_stays_on_one_line_whatever_the_value() -> None:
    [line] = mistakes('agent:\n  format: "a\\nb\\e[31m' + "x" * 500 + '"\n')
    assert line.startswith('w.yaml:12: agent.format: "a\\nb')
    assert line.isprintable()
    assert len(line) < 200


class TestMissingPlaces:
    def test_task_file(self) -> None:
        assert replaced("file: tasks.jsonl", "file: taks.jsonl") == [
            "w.yaml:3: tasks.file: there is no file taks.jsonl; did you mean tasks.jsonl?"
        ]

    def test_task_file_of_an_unknown_kind(self) -> None:
        assert replaced("file: tasks.jsonl", "file: tasks.txt") == [
            "w.yaml:3: tasks.file: tasks.txt is no kind of task file; give a file which ends in .jsonl, .parquet, .csv"
        ]

    def test_tokenizer_without_its_file(self, place: Path) -> None:
        (place / "tokenizer" / "tokenizer.json").unlink()
        assert mistakes() == [
            "w.yaml:7: model.tokenizer: tokenizer has no tokenizer.json; give a directory as on the Hugging Face hub, "
            "with tokenizer.json in it"
        ]

    def test_a_file_where_a_directory_belongs(self) -> None:
        assert replaced("tokenizer: tokenizer", "tokenizer: tasks.jsonl") == [
            "w.yaml:7: model.tokenizer: tasks.jsonl is not a directory; give a directory"
        ]

    def test_what_make_builds(self) -> None:
        engine = "kind: sglang\n  launch: {python: .venv-sglang/bin/python, model: models/smollm2-135m}"
        assert replaced("kind: simulated\n  script: s.jsonl", engine) == [
            "w.yaml:10: engine.launch.python: there is no file .venv-sglang/bin/python; run `make sglang-cpu`",
            "w.yaml:10: engine.launch.model: there is no directory models/smollm2-135m; run `make sglang-cpu`",
        ]

    def test_an_interpreter_that_is_none(self) -> None:
        engine = "kind: sglang\n  launch: {python: tasks.jsonl, model: tokenizer}"
        assert replaced("kind: simulated\n  script: s.jsonl", engine) == [
            "w.yaml:10: engine.launch.python: tasks.jsonl cannot be executed; give the interpreter of the engine's "
            "environment, as .venv/bin/python"
        ]

    def test_script_and_system_prompt(self) -> None:
        assert replaced("script: s.jsonl", "script: gone.jsonl\nagent: {system_file: system.md}") == [
            "w.yaml:10: engine.script: there is no file gone.jsonl; make it, or mend the path: it is relative to the "
            "workload file",
            "w.yaml:11: agent.system_file: there is no file system.md; make it, or mend the path: it is relative to "
            "the workload file",
        ]

    def test_a_key_that_is_not_in_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        engine = "kind: sglang\n  url: http://x\n  api_key: DEMO_KEY"
        monkeypatch.delenv("DEMO_KEY", raising=False)
        assert replaced("kind: simulated\n  script: s.jsonl", engine) == [
            "w.yaml:11: engine.api_key: the environment variable DEMO_KEY is not set; export DEMO_KEY, or leave the "
            "key out"
        ]
        monkeypatch.setenv("DEMO_KEY", "k")
        assert load("w.yaml").workload.engine.kind == "sglang"

    def test_a_name_too_long(self) -> None:
        [line] = replaced("tokenizer: tokenizer", "tokenizer: " + "x" * 300)
        assert line.startswith("w.yaml:7: model.tokenizer: ")
        assert line.endswith("cannot be used: file name too long; mend the path")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_file_that_may_not_be_read(self, place: Path) -> None:
        (place / "tasks.jsonl").chmod(0)
        assert mistakes() == ["w.yaml:3: tasks.file: tasks.jsonl cannot be read; allow it with chmod u+r"]


class TestSystemPrompt:
    def test_from_the_workload(self) -> None:
        assert loaded("agent: {system: Be brief.}\n").system == "Be brief."

    def test_from_a_file(self, place: Path) -> None:
        (place / "system.md").write_text("Be wise. ü")
        assert loaded("agent: {system_file: system.md}\n").system == "Be wise. ü"

    def test_from_a_file_that_is_no_text(self, place: Path) -> None:
        (place / "system.md").write_bytes(b"\xff\xfe")
        assert mistakes("agent: {system_file: system.md}\n") == [
            "w.yaml:11: agent.system_file: system.md is not UTF-8 text; save the file as UTF-8"
        ]


class TestDefaultTags:
    def test_a_block_that_may_be_left_out_may_leave_out_its_tag(self) -> None:
        workload = loaded("control: {pause_share: 0.95}\ntools: {names: [bash]}\n").workload
        assert isinstance(workload.control, TokenWindow)
        assert workload.control.pause_share == 0.95
        assert isinstance(workload.tools, SandboxTools)
        assert workload.tools.names == ["bash"]

    def test_a_needed_block_may_not(self) -> None:
        assert replaced("  kind: simulated\n", "") == [
            "w.yaml:8: engine.kind: is missing; add it: one of sglang, vllm, openai, simulated"
        ]


class TestWorkloadFile:
    def test_missing(self) -> None:
        assert complaints(lambda: load("gone.yaml")) == [
            "gone.yaml: there is no such file; give the path of a workload file"
        ]

    def test_a_directory(self) -> None:
        assert complaints(lambda: load("tokenizer")) == [
            "tokenizer: cannot be read: is a directory; give the path of a workload file"
        ]

    def test_not_utf8(self, place: Path) -> None:
        (place / "w.yaml").write_bytes(b"name: demo\ntasks: \xff\n")
        assert complaints(lambda: load("w.yaml")) == ["w.yaml:2: is not UTF-8; save the file as UTF-8"]

    def test_with_a_byte_order_mark(self, place: Path) -> None:
        (place / "w.yaml").write_bytes(b"\xef\xbb\xbf" + WORKLOAD.encode())
        assert load("w.yaml").workload.name == "demo"


def test_none_is_a_policy_not_a_null() -> None:
    assert isinstance(loaded("control: {policy: none}\n").workload.control, NoControl)


class TestWrongValuesHideNothing:
    def test_what_a_block_is_checked_for_as_a_whole(self) -> None:
        found = mistakes("control: {policy: concur, beta: 2, u_low: 0.8, u_high: 0.3}\n")
        assert len(found) == 2
        assert any("control.beta" in line for line in found)
        assert any("u_low" in line and "u_high" in line for line in found)

    def test_but_nothing_is_said_twice(self) -> None:
        assert len(mistakes("control: {policy: concur, u_low: 3}\n")) == 1
        assert len(replaced("script: s.jsonl", "script: 5")) == 1

    def test_tasks_beside_a_wrong_number(self, place: Path) -> None:
        (place / "tasks.jsonl").write_text('{"id": "a", "question": "?"}\n{"id": "a", "question": "?"}\n')
        found = replaced("tasks:\n", "tasks:\n  samples: 0\n")
        assert any("tasks.samples" in line for line in found)
        assert any("tasks.jsonl:2" in line for line in found)


class TestContradictions:
    def test_a_synthetic_load_needs_its_tool(self) -> None:
        assert replaced("script: s.jsonl", "synthetic: {}") == [
            "w.yaml:10: engine.synthetic: a synthetic load calls the tool `work`, which the sandbox does not have; add "
            "`tools: {kind: synthetic}`, or give a `script`"
        ]
        assert load("w.yaml", ["tools.kind=synthetic"]).workload.tools.kind == "synthetic"

    def test_a_command_to_check_needs_the_sandbox(self) -> None:
        assert mistakes("tools: {kind: synthetic}\nverify:\n- {kind: command}\n")[:1] == [
            "w.yaml:13: verify.0: a command to check a result runs in the sandbox, and these tools have none; remove "
            "it, or give sandbox tools"
        ]

    def test_the_format_bash_needs_bash(self) -> None:
        assert mistakes("agent: {format: bash}\ntools: {names: [python, submit]}\n") == [
            "w.yaml:11: agent.format: the format bash needs the tool `bash`; the tools are python, submit; give "
            "sandbox tools with it, or choose another format"
        ]
        assert loaded("agent: {format: bash}\n").workload.agent.format == "bash"

    def test_sizes_with_which_nothing_could_be_computed(self) -> None:
        for sizes in ("chunked_prefill_tokens: 8\n  page_size: 16", "pool_tokens: 4"):
            [line] = replaced("script: s.jsonl", f"script: s.jsonl\n  {sizes}")
            assert line.startswith("w.yaml:8: engine: `")
            assert line.endswith("; give larger ones")
