"""What decides an agent's result, and one digest of it: two runs may share agents only where it is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from concur_batch.workload.errors import shown
from concur_batch.workload.schema import SimulatedEngine, Verify, Workload
from concur_batch.workload.settings import settings_of
from concur_batch.workload.tasks import Task

# Settings that change where, when or how fast agents run, but not what they do; whatever is not listed counts. Paths
# and what selects the tasks are here too: `identity` has the contents in their place.
_RUNTIME = (
    "name",
    "output",
    "storage",
    "control",
    "simulate",
    "agent.hosts",
    "agent.attempts",
    "tools.max_running",
    "tools.keep_workspaces",
    "engine.url",
    "engine.api_key",
    "engine.launch",
    "engine.priorities",
    "engine.sessions",
    "engine.request_seconds",
    "engine.retries",
    "engine.pool_tokens",
    "engine.page_size",
    "engine.max_running_requests",
    "engine.chunked_prefill_tokens",
    "engine.time_scale",
    "engine.cost",
    "engine.script",
    "agent.system",
    "agent.system_file",
    "model.tokenizer",
    "tasks.file",
    "tasks.prompt",
    "tasks.id",
    "tasks.files",
    "tasks.limit",
    "replay.file",
)

# What an identity has digests of, by the keys that say where it comes from.
_CONTENTS = ("tasks", "model.tokenizer", "agent.system", "engine.script")

# What a tokenizer directory may hold that changes the token ids of a prompt or the end of a turn.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "generation_config.json",
)


def tasks_digest(tasks: Sequence[Task], verify: Sequence[Verify]) -> str:
    """A digest of what the agents are given and judged by; the order of the rows does not matter."""
    judged = dict.fromkeys(name for check in verify for name in (check.column, getattr(check, "match_column", None)))
    digest = blake2b(digest_size=16)
    for task in sorted(tasks, key=lambda task: task.id):
        cells = {name: task.columns.get(name) for name in judged if name is not None}
        digest.update(orjson.dumps([task.id, task.prompt, task.files, cells], option=orjson.OPT_SORT_KEYS))
    return digest.hexdigest()


def identity(workload: Workload, tasks_digest: str) -> dict[str, Any]:
    """Everything that decides results, by key path; files and tasks stand as digests of their contents.

    Reads the tokenizer, the system prompt and the simulated engine's script, and raises OSError if one is gone.
    """
    settings = {key: value for key, value in settings_of(workload).items() if not _is_runtime(key)}
    system_file = workload.agent.system_file
    system = workload.agent.system.encode() if system_file is None else system_file.read_bytes()
    contents = {
        "tasks": tasks_digest,
        "model.tokenizer": _directory_digest(workload.model.tokenizer),
        "agent.system": _digest(system),
    }
    if isinstance(workload.engine, SimulatedEngine) and workload.engine.script is not None:
        contents["engine.script"] = _digest(workload.engine.script.read_bytes())
    return settings | contents


def fingerprint(identity: Mapping[str, Any]) -> str:
    """A digest of an `identity`, as 32 hexadecimal digits."""
    return _digest(orjson.dumps(dict(identity), option=orjson.OPT_SORT_KEYS))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two identities, a line each; of contents it is only known that they do."""

    def value(values: Mapping[str, Any], key: str) -> str:
        return shown(values[key]) if key in values else "not there"

    differing = [
        key for key in sorted({*before, *now}) if [before.get(key), key in before] != [now.get(key), key in now]
    ]
    return [
        f"{key}: the content has changed"
        if key in _CONTENTS
        else f"{key}: was {value(before, key)}, is {value(now, key)}"
        for key in differing
    ]


def _is_runtime(key: str) -> bool:
    return any(key == knob or key.startswith(f"{knob}.") for knob in _RUNTIME)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _directory_digest(directory: Path) -> str:
    digest = blake2b(digest_size=16)
    for name in TOKENIZER_FILES:
        file = directory / name
        if file.is_file():
            digest.update(f"{name} {_digest(file.read_bytes())}\n".encode())
    return digest.hexdigest()
