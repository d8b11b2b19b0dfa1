"""Rewards: what an agent left in its workspace or answered, against what was expected."""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tools_env.session import SandboxSession
from tools_env.workspace import FileProblem

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_RELATIVE_TOLERANCE = 1e-6
_REWARD = "reward:"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NoRoom(Exception):
    """The files of a check do not fit on the disk; the message is the system's."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of a verification.

    `reward` is None unless `status` is `done`: a verification that ran out of time (`timeout`), or that could not run
    or printed a reward that is no number (`crashed`), says nothing about the agent's work.
    """

    status: Literal["done", "timeout", "crashed"]
    reward: float | None
    output: str


async def verify_command(
    session: SandboxSession, command: str, files: Mapping[str, str], deadline_seconds: float = 120.0
) -> Verification:
    """Puts `files`, which the agent has not seen, into its workspace and runs the bash `command` there.

    Exit code 0 is reward 1, any other 0, unless the last line that the command printed is `reward: <number>` and the
    command ended with 0: then that is the reward. Only what this command prints counts. The agent's processes are dead
    by then, its files at the hidden files' paths are replaced and its home is not used, but its other files are there:
    a command that imports the agent's code runs it, so what is printed last should be printed by a process that does
    not.

    Raises:
        ValueError: a path in `files` leads out of the workspace.
        NoRoom: the disk is full, which says nothing of the agent; it may be called again.
        RuntimeError: the session is closed.
    """
    try:
        await session.put_files(files)
    except (OSError, FileProblem) as problem:
        if isinstance(problem, OSError) and problem.errno in _NO_ROOM:
            raise NoRoom(os.strerror(problem.errno)) from None
        return Verification("crashed", None, f"the hidden files could not be written: {problem}")
    result = await session.run_command(command, deadline_seconds)
    if result.status in ("timeout", "crashed"):
        return Verification("timeout" if result.status == "timeout" else "crashed", None, result.output)
    if result.exit_code:
        return Verification("done", 0.0, result.output)
    last = result.output.rstrip().rpartition("\n")[2].strip()
    if not last.startswith(_REWARD):
        return Verification("done", 1.0, result.output)
    try:
        reward = float(last.removeprefix(_REWARD))
    except ValueError:
        reward = math.nan
    if not math.isfinite(reward):
        return Verification("crashed", None, f"{result.output.rstrip()}\n[{last!r:.80} is not a finite number]")
    return Verification("done", reward, result.output)


def verify_answer(answer: str | None, expected: str, kind: Literal["exact", "number", "regex"]) -> float:
    """1.0 if `answer` is what was expected, else 0.0; no answer is 0.0.

    `exact` ignores case and how white space is laid out. `number` compares within a relative 1e-6; thousands commas,
    units and words around it do not matter, but the answer must hold one number only. `regex` must match the whole
    answer, white space around it apart.

    Raises:
        ValueError: `expected` is no number, or no regular expression, where it should be.
    """
    if kind == "number":
        wanted = _number(expected)
        if wanted is None:
            raise ValueError(f"expected answer {expected!r:.80}: holds not exactly one number")
        found = None if answer is None else _number(answer)
        return float(found is not None and math.isclose(found, wanted, rel_tol=_RELATIVE_TOLERANCE))
    if kind == "regex":
        try:
            pattern = re.compile(expected)
        except re.error as error:
            raise ValueError(f"expected answer {expected!r:.80}: not a regular expression ({error})") from None
        return float(answer is not None and pattern.fullmatch(answer.strip()) is not None)
    return float(answer is not None and _normal(answer) == _normal(expected))


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def _number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[0].replace(",", "")) if len(found) == 1 else None
