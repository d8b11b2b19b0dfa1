"""What a tool is, what a call of it returns, and the protocol of the environments that run tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Status = Literal["ok", "error", "timeout", "crashed"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it.

    `parameters` is the JSON schema of the arguments: an object with `properties` and `required`. `has_effects` is not
    told: whether a call may change anything that lasts longer than the call.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    has_effects: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one tool call.

    `status`: `ok`; `error`, the tool ran and failed (a nonzero exit too) or its arguments were wrong; `timeout`, it
    was killed at the deadline; `crashed`, the sandbox itself failed, which is never the agent's fault.
    `seconds` is the time the tool ran, `queue_seconds` the time the call first waited for a free place to run in.
    `output_bytes` counts what the tool wrote in all; `truncated` says that `output` holds only its head and tail.
    `answer` is set by `submit` alone.
    """

    status: Status
    output: str
    seconds: float = 0.0
    queue_seconds: float = 0.0
    exit_code: int | None = None
    truncated: bool = False
    output_bytes: int = 0
    answer: str | None = None


class StateLost(Exception):
    """What was saved of a session is not there any more, or not whole; one line."""


class Session(Protocol):
    """One agent's own tool state, from open to close."""

    @property
    def workspace(self) -> Path | None:
        """The agent's directory on the host, or None where there is none."""

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Runs a tool. Whatever the agent asks for comes back as a result: only a closed session raises."""

    async def save(self, recorded: str) -> str:
        """The mark of the session as it is now, which `open` can bring back, in another process too: durable.

        `recorded` is the newest mark that is durably on record as the agent's: those before it are not needed any more.
        No call may be under way. Raises OSError where it could not be saved; it may be tried again.
        """

    async def close(self, keep: bool = False) -> None:
        """Ends what still runs and removes the workspace, or with `keep` leaves it for a person to look at. What was
        saved stays."""


class ToolEnvironment(Protocol):
    """Where tools run; it serves any number of sessions at once."""

    def specs(self) -> list[ToolSpec]:
        """The tools that every session of this environment offers."""

    async def open(self, key: str, files: Mapping[str, str], mark: str | None = None) -> Session:
        """A fresh session, or one as it was when `save` gave that mark. `files` maps relative paths to the texts that
        the workspace of a fresh one starts with.

        Raises:
            ValueError: a file's path is absolute, leaves the workspace or is no path at all.
            StateLost: what was saved under the mark cannot be had any more.
        """

    async def forget(self, key: str) -> None:
        """Removes what was saved of the key's sessions, which are closed: the agent's end is on record."""

    async def close(self) -> None:
        """Closes every open session and gives back what the environment holds."""


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int}


def argument_error(spec: ToolSpec, arguments: object) -> str | None:
    """What is wrong with a call's arguments, as one line that tells the model how to mend it; None if nothing is."""
    if not isinstance(arguments, dict):
        return f"{spec.name}: arguments must be a JSON object"
    properties = spec.parameters["properties"]
    for name in spec.parameters.get("required", []):
        if name not in arguments:
            return f"{spec.name}: missing argument '{name}' ({_signature(spec)})"
    for name, value in arguments.items():
        if name not in properties:
            return f"{spec.name}: unknown argument {name!r:.80} ({_signature(spec)})"
        kind = properties[name]["type"]
        if isinstance(value, bool) or not isinstance(value, _JSON_TYPES[kind]):
            return f"{spec.name}: argument '{name}' must be of type {kind}, not {type(value).__name__}"
        if isinstance(value, str) and (problem := _text_problem(value)):
            return f"{spec.name}: argument '{name}' {problem}"
    return None


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "must not contain a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "is not valid Unicode (it holds a lone surrogate)"
    return None


def _signature(spec: ToolSpec) -> str:
    required = spec.parameters.get("required", [])
    names = [name if name in required else f"{name}?" for name in spec.parameters["properties"]]
    return f"arguments: {', '.join(names) or 'none'}"
