from __future__ import annotations

from typing import Any

import pytest

from tools_env.catalogue import CATALOGUE
from tools_env.spec import argument_error


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("bash", {}, "missing argument 'command'"),
        ("bash", {"command": "x", "cwd": "y"}, "unknown argument 'cwd' (arguments: command)"),
        ("bash", {"command": 3}, "must be of type string, not int"),
        ("bash", {"command": None}, "must be of type string"),
        ("bash", {"command": "a\0b"}, "NUL"),
        ("bash", {"command": "\ud800"}, "surrogate"),
        ("bash", ["ls"], "must be a JSON object"),
        ("read_file", {"path": "a", "start_line": "1"}, "must be of type integer, not str"),
        ("read_file", {"path": "a", "start_line": True}, "must be of type integer, not bool"),
        ("read_file", {"path": "a", "start_line": 1.5}, "must be of type integer, not float"),
    ],
)
def test_wrong_arguments_are_named(tool: str, arguments: Any, said: str) -> None:
    problem = argument_error(CATALOGUE[tool], arguments)
    assert problem is not None and said in problem and "\n" not in problem


@pytest.mark.parametrize("tool", CATALOGUE)
def test_right_arguments_pass(tool: str) -> None:
    spec = CATALOGUE[tool]
    values = {"string": "x", "integer": 1}
    everything = {name: values[p["type"]] for name, p in spec.parameters["properties"].items()}
    assert argument_error(spec, everything) is None
    assert argument_error(spec, {name: everything[name] for name in spec.parameters["required"]}) is None
