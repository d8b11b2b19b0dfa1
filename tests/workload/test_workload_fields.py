"""Every field of the schema, found through its JSON Schema: a wrong type is one problem, at the line of that key."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from workload_files import complaints

from concur_batch.workload.explain import PATTERNS
from concur_batch.workload.loading import load
from concur_batch.workload.schema import Workload

pytestmark = pytest.mark.usefixtures("place")

SCHEMA = Workload.model_json_schema()
MARK = "31337"  # stands once in every wrong workload

Path_ = tuple[str | int, ...]

BLOCKS: dict[str, list[dict[str, Any]]] = {
    "engine": [
        {"kind": "sglang", "launch": {"python": sys.executable, "model": "tokenizer"}},
        {"kind": "vllm", "launch": {"python": sys.executable, "model": "tokenizer"}},
        {"kind": "openai", "url": "http://gpu-7:8000"},
        {"kind": "simulated", "script": "s.jsonl"},
    ],
    "tools": [{"kind": "sandbox"}, {"kind": "synthetic"}],
    "control": [
        {"policy": "none"},
        {"policy": "request_cap", "cap": 2},
        {"policy": "agent_cap", "cap": 2},
        {"policy": "concur"},
        {"policy": "steady"},
        {"policy": "token_window"},
    ],
    "verify": [{"kind": "command"}, {"kind": "answer"}],
}


def resolved(node: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema node without references and null: one node, or one for each variant."""
    if "$ref" in node:
        return resolved(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]])
    alternatives = node.get("oneOf") or [item for item in node.get("anyOf", []) if item.get("type") != "null"]
    return [leaf for item in alternatives for leaf in resolved(item)] or [node]


def variants() -> Iterator[tuple[dict[str, Any], dict[str, Any], Path_]]:
    """Each block of the workload: its schema node, the whole document around it, and where in that it stands."""
    for name, node in SCHEMA["properties"].items():
        listed = name == "verify"
        nodes = resolved(node["items"] if listed else node)
        blocks: list[dict[str, Any] | None] = [None] if name not in BLOCKS else [*BLOCKS[name]]
        assert len(blocks) == len(nodes)
        for block, found in zip(blocks, nodes, strict=True):
            whole = base()
            if block is not None:
                whole[name] = [copy.deepcopy(block)] if listed else copy.deepcopy(block)
            yield found, whole, (name, 0) if listed else (name,)


def base() -> dict[str, Any]:
    return {
        "name": "demo",
        "tasks": {"file": "tasks.jsonl", "prompt": "{{ question }}"},
        "model": {"name": "m", "tokenizer": "tokenizer"},
        "engine": {"kind": "simulated", "script": "s.jsonl"},
    }


def fields(node: dict[str, Any], path: Path_) -> Iterator[tuple[Path_, dict[str, Any]]]:
    """Every field under a block, blocks within it included."""
    yield path, node
    for name, under in node.get("properties", {}).items():
        [found] = resolved(under)
        yield from fields(found, (*path, name))
    for number, under in enumerate(node.get("prefixItems", [])):
        yield (*path, number), under


def cases() -> Iterator[Any]:
    for node, whole, at in variants():
        for path, field in fields(node, at):
            tag = whole.get(str(at[0]))
            tag = tag[0] if isinstance(tag, list) else tag
            name = next(iter(tag.values())) if isinstance(tag, dict) and at[0] in BLOCKS else ""
            yield pytest.param(path, field, whole, id=f"{name}-{'.'.join(map(str, path))}")


def put(document: Any, path: Path_, value: Any) -> None:
    for number, key in enumerate(path[:-1]):
        if isinstance(document, dict) and key not in document:
            document[key] = [5, 5] if isinstance(path[number + 1], int) else {}
        document = document[key]
    document[path[-1]] = value


@pytest.mark.parametrize(("path", "field", "whole"), list(cases()))
def test_a_wrong_type_is_one_problem_at_its_key(path: Path_, field: dict[str, Any], whole: dict[str, Any]) -> None:
    whole = copy.deepcopy(whole)
    textual = field.get("type") == "string" and "enum" not in field and "const" not in field
    if path[0] == "replay":
        del whole["tasks"]
        if len(path) > 2 or path[-1] == "limit":
            whole["replay"] = {"synthetic": {"agents": 2}}
    elif "synthetic" in path:
        del whole["engine"]["script"]  # both at once would be a problem of its own
    put(whole, path, int(MARK) if textual else f"wrong {MARK}")
    text = yaml.safe_dump(whole, sort_keys=False)
    Path("w.yaml").write_text(text)
    [line] = [number for number, line in enumerate(text.splitlines(), 1) if MARK in line]
    [complaint] = complaints(lambda: load("w.yaml"))
    assert complaint.startswith(f"w.yaml:{line}: {'.'.join(map(str, path))}: ")
    reason, _, mend = complaint.partition("; ")
    assert MARK in reason
    assert mend


def test_the_cases_reach_into_every_block() -> None:
    found = {".".join(str(part) for part in case.values[0]) for case in cases()}
    assert {
        "name",
        "tasks.samples",
        "model.sampling.stop",
        "engine.launch.python",
        "engine.launch.hicache.write_policy",
        "engine.cost.decode_step_seconds",
        "engine.synthetic.turns.1",
        "agent.limits.turns",
        "tools.wait_seconds.0",
        "control.h_thresh",
        "verify.0.match_column",
        "output",
        "storage",
    } <= found


def test_every_pattern_has_words() -> None:
    def patterns(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            for under in node.values():
                yield from patterns(under)
        elif isinstance(node, list):
            for under in node:
                yield from patterns(under)

    assert set(patterns(SCHEMA)) == set(PATTERNS)


def test_every_field_has_a_meaning() -> None:
    for block in [SCHEMA, *SCHEMA["$defs"].values()]:
        assert block["description"]
        for name, field in block["properties"].items():
            assert field.get("description"), f"{block['title']}.{name}"
