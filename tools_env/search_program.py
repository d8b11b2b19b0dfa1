"""search_files: a program of its own, which runs inside the sandbox.

A regular expression can take forever, and only a process can be stopped at a deadline. Standard library only, and
any Python 3.8 or later: it is run by whatever Python the sandbox has.

Usage: PATTERN PATH, with the workspace as the working directory. Exits 0, also without hits, or 2 on a wrong pattern
or path.
"""

# Importing pathlib would double the time to start.
# ruff: noqa: PTH113, PTH118, PTH123, PTH110
import os
import re
import stat
import sys
from collections.abc import Iterator

HITS = 200
LINE_CHARACTERS = 300
FILE_BYTES = 16 << 20
SNIFF_BYTES = 8192


def files(path: str) -> Iterator[str]:
    """The regular files at or below a path, sorted; symbolic links are not followed."""
    if os.path.isfile(path):
        yield path
    for directory, names, leaves in os.walk(path):
        names.sort()
        for leaf in sorted(leaves):
            yield os.path.normpath(os.path.join(directory, leaf))


def hits(pattern: "re.Pattern[str]", path: str) -> Iterator[str]:
    """`path:line: text` of each line in which the pattern is found; none in a binary or oversized file."""
    try:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES:
            return
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES)
    except OSError:
        return
    if b"\0" in data[:SNIFF_BYTES]:
        return
    name = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        text = line.rstrip("\r")
        if pattern.search(text):
            yield f"{name}:{number}: {text[:LINE_CHARACTERS]}"


def main(arguments: list[str]) -> int:
    """Prints the hits."""
    expression, path = arguments
    sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    try:
        pattern = re.compile(expression)
    except (re.error, RecursionError, OverflowError) as error:
        print(f"not a valid regular expression: {error}")
        return 2
    if not os.path.exists(path):
        print(f"{path}: no such file or directory")
        return 2
    found = 0
    for file in files(path):
        for hit in hits(pattern, file):
            found += 1
            if found > HITS:
                print(f"[... more than {HITS} hits: narrow the pattern or the path ...]")
                return 0
            print(hit, flush=True)
    if not found:
        print("no hits")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
