"""The README.md of a data set: what `datasets` and the Hugging Face Hub read of it, and what a person should. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import yaml

from concur_batch.export.outcome import Outcome
from concur_batch.export.split import DATA

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Card:
    """What a card tells. `options` are those of the command that decide what is in the data set."""

    format: str
    kind: str
    schema: pa.Schema
    options: Sequence[str]
    outcome: Outcome
    manifests: Sequence[Manifest]
    version: str


def card(told: Card) -> str:
    """The text. The same export has the same card: it names no time, no machine and no path."""
    names = list(dict.fromkeys(_workload(manifest)["name"] for manifest in told.manifests))
    head = {
        "pretty_name": f"Trajectories of {', '.join(names)} ({told.format})",
        "tags": ["agent", "tool-use", "trajectories", "concur"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": name, "path": f"{DATA}/{name}-*"}
                    for name, volume in told.outcome.splits.items()
                    if volume.files
                ],
            }
        ],
    }
    blocks = [
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---",
        f"# {head['pretty_name']}",
        f"What tool-using agents did, in the format `{told.format}`; written by `concur export` {told.version}.",
        *_volume(told),
        *_selection(told),
        *_report(told),
        *_columns(told.schema),
        *_provenance(told.manifests),
    ]
    return "\n\n".join(blocks) + "\n"


def _volume(told: Card) -> Iterator[str]:
    rows = [
        (name, volume.trajectories, volume.records, volume.turns, volume.tokens, volume.sampled_tokens, volume.files)
        for name, volume in told.outcome.splits.items()
    ]
    yield _table(("split", "trajectories", "records", "turns", "tokens", "sampled tokens", f"{told.kind} files"), rows)
    yield "A split has all samples of its tasks. Records stand task by task, those of a task the best first."


def _selection(told: Card) -> Iterator[str]:
    outcome = told.outcome
    yield "## Selection"
    yield "\n".join(f"    {' '.join(option.split())}" for option in told.options)
    yield _table(
        ("agents", "count"),
        [("ended", outcome.ended), *((f"dropped: {_cell(why)}", count) for why, count in outcome.dropped.items()),
         ("kept", outcome.kept)],
    )  # fmt: skip
    for run, count in outcome.not_ended.items():
        if count:
            yield f"{count:,} agents of {_code(run)} had not ended, and are not counted."


def _report(told: Card) -> Iterator[str]:
    if told.outcome.report:
        yield "## Fidelity"
        yield _table(("trajectories", "count"), [(_cell(name), count) for name, count in told.outcome.report.items()])


def _columns(schema: pa.Schema) -> Iterator[str]:
    yield "## Columns"
    yield _table(("column", "type"), [(_code(field.name), _code(str(field.type))) for field in schema])


def _provenance(manifests: Sequence[Manifest]) -> Iterator[str]:
    yield "## Provenance"
    for manifest in manifests:
        yield "\n".join(f"* {name}: {value}" for name, value in _origin(manifest))


def _origin(manifest: Manifest) -> Iterator[tuple[str, str]]:
    workload = _workload(manifest)
    model, engine = workload["model"], workload["engine"]
    yield "run", f"{_code(manifest['run'])}, {manifest['status']}, {manifest['agents']:,} agents"
    yield "model", _code(_model(model["name"]))
    sampling = {name: value for name, value in (model.get("sampling") or {}).items() if value is not None}
    if sampling:
        yield "sampling", _code(json.dumps(sampling, ensure_ascii=False))
    versions = {str(info["version"]) for info in manifest.get("engine", ()) if info.get("version")}
    simulated = ", SIMULATED" if manifest.get("simulated") else ""
    yield "engine", " ".join(dict.fromkeys([engine["kind"], *sorted(versions)])) + simulated
    if manifest.get("ids_estimated"):
        yield "token ids", "estimated: the engine took messages, and the ids are those of the run's tokenizer"
    yield "workload", f"{_code(workload['name'])}, fingerprint {_code(str(manifest.get('fingerprint')))}"
    for name in ("tasks", "model.tokenizer", "agent.system"):
        if digest := manifest.get("identity", {}).get(name):
            yield f"digest of {name}", _code(str(digest))
    if version := manifest.get("versions", {}).get("concur-batch"):
        yield "run by", f"concur {version}"
    if began := manifest.get("started_at"):
        yield "began", str(began)


def _workload(manifest: Manifest) -> dict[str, Any]:
    found: dict[str, Any] = manifest["workload"]
    return found


def _model(name: str) -> str:
    """Its name: a model may be named by its directory, whose place is nobody's business."""
    return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", "~", ".")) else name


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown; figures stand at the right."""
    lines = [names, ["---:" if isinstance(cell, int) else "---" for cell in rows[0]]]
    lines += [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{_cell(text).replace('`', chr(39))}`"
