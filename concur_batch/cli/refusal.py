"""How a command ends that cannot do what it was asked for: one line, and an exit code."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import NoReturn


def refuse(message: str, code: int) -> NoReturn:
    """Print the line to stderr and exit."""
    print(message, file=sys.stderr)
    sys.exit(code)


def nearest(name: str, known: Sequence[str]) -> str:
    """ "; there are for instance …" with the names that are most like this one; empty where there are none."""
    near = difflib.get_close_matches(name, known, 3) or sorted(known)[:3]
    return f"; there are for instance {', '.join(near)}" if near else ""
