"""Make the quickstart's tasks and scripts from their readable sources.

    python scripts/make_quickstart.py

Reads workloads/quickstart/source/*.yaml (one file a kind of task) and writes tasks.jsonl and scripts.jsonl beside that
folder. Logs and tables are drawn from seeds by `quickstart_data`, which also works out their answers, by other means
than the scripts do. The output is the same on every machine.

A step of a source script is {when?, say, do}. `say` is text, or "@name" for the next phrase of that name in
phrases.yaml. `do` lists calls in a short form: `list`, `tests`, {read: path}, {bash: command}, {python: code},
{write: {path, content}}, {edit: {path, old, new}}, {search: {pattern, path}}, {submit: answer}.
"""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml
from quickstart_data import GENERATED

ROOT = Path(__file__).resolve().parent.parent / "workloads" / "quickstart"
KINDS = ("fix", "write", "edit", "data", "log", "csv")

# unittest prints how long it took: cut, so that an observation is the same on every run.
RUN_TESTS = "python3 -m unittest 2>&1 | sed -E 's/ in [0-9.]+s//'"

TOOL_NAMES = {
    "read": ("read_file", "path"),
    "write": ("write_file", None),
    "edit": ("edit_file", None),
    "search": ("search_files", None),
    "bash": ("bash", "command"),
    "python": ("python", "code"),
    "submit": ("submit", "answer"),
}


def expand_call(call: str | dict[str, Any]) -> dict[str, Any]:
    """One call of the source's short form as {"name", "arguments"}."""
    if call == "list":
        return {"name": "list_files", "arguments": {}}
    if call == "tests":
        return {"name": "bash", "arguments": {"command": RUN_TESTS}}
    if not isinstance(call, dict) or len(call) != 1:
        raise ValueError(f"a call is `list`, `tests` or one {{tool: arguments}} pair, not {call!r}")
    ((short, value),) = call.items()
    name, only_argument = TOOL_NAMES[short]
    if isinstance(value, str):
        if only_argument is None:
            raise ValueError(f"{short} takes a mapping of arguments, not {value!r}")
        value = {only_argument: value}
    return {"name": name, "arguments": value}


class Phrases:
    """Named lists of phrases, each list used in turn, so that neighbouring scripts do not sound alike."""

    def __init__(self, lists: dict[str, list[str]]) -> None:
        self._lists = {name: cycle(texts) for name, texts in lists.items()}

    def fill(self, say: str) -> str:
        return next(self._lists[say[1:]]).strip() if say.startswith("@") else say.strip()


def expand_step(step: dict[str, Any], phrases: Phrases) -> dict[str, Any]:
    expanded = {"think": phrases.fill(step["say"]), "calls": [expand_call(call) for call in step["do"]]}
    if "when" in step:
        expanded["when"] = step["when"]
    return expanded


def make_task(source: dict[str, Any], kind: str) -> dict[str, Any]:
    """A task row. Files come from the source, or with the answer from the seeded maker of the same id."""
    answer: str | None
    if source["id"] in GENERATED:
        files, answer = GENERATED[source["id"]]()
    else:
        files, answer = source["files"], None
    return {
        "id": source["id"],
        "kind": kind,
        "question": source["question"].strip(),
        "files": files,
        "check": source.get("check", {"command": None, "files": {}}),
        "answer": answer,
        "answer_kind": source.get("answer_kind"),
    }


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(f"{path.name}: {len(rows)} rows, {path.stat().st_size:,} bytes")


def main() -> None:
    phrases = Phrases(yaml.safe_load((ROOT / "source" / "phrases.yaml").read_text()))
    tasks, scripts = [], []
    for kind in KINDS:
        for source in yaml.safe_load((ROOT / "source" / f"{kind}.yaml").read_text()):
            tasks.append(make_task(source, kind))
            variants = [[expand_step(step, phrases) for step in variant] for variant in source["variants"]]
            scripts.append({"id": source["id"], "variants": variants})
    write_lines(ROOT / "tasks.jsonl", tasks)
    write_lines(ROOT / "scripts.jsonl", scripts)


if __name__ == "__main__":
    main()
