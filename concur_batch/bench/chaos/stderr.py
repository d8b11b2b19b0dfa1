"""What a command has said to a terminal. Pure."""

from __future__ import annotations

# A signal in the first milliseconds meets an interpreter that has run nothing of ours yet.
_UNBORN = "Fatal Python error: init_import_site"
# Python swallows what is raised while it forks, and says so: Ray answers SIGTERM by raising, and forks as it starts.
_SWALLOWED = "Exception ignored in"


def has_traceback(text: str) -> bool:
    """Whether a command of ours has let an exception through to its user."""
    ours = text.count("Traceback (most recent call last)")
    return ours > text.count(_UNBORN) + text.count(_SWALLOWED)
