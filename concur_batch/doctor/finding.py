"""What one check of `concur doctor` found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warning", "failure"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: what was checked, how it stands, what was seen, and how to mend it.

    `failure`: a run would fail, or its controller would be blind. `warning`: a run works, but less well, or the check
    could not tell. `mend` is empty where there is nothing to do.
    """

    name: str
    verdict: Verdict
    seen: str
    mend: str = ""


def ok(name: str, seen: str) -> Finding:
    return Finding(name, "ok", seen)


def warning(name: str, seen: str, mend: str) -> Finding:
    return Finding(name, "warning", seen, mend)


def failure(name: str, seen: str, mend: str) -> Finding:
    return Finding(name, "failure", seen, mend)
