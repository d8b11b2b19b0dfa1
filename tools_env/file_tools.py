"""read_file, write_file, edit_file and list_files, on the host and without a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools_env.workspace import FileProblem, Workspace

FILE_LIMIT_BYTES = 16 << 20
"""The largest file that file tools read or edit whole."""

_LIST_LIMIT = 1000
_BINARY_SNIFF_BYTES = 8192


def read_file(workspace: Workspace, path: str, start_line: int | None = None, end_line: int | None = None) -> bytes:
    """The file's bytes, or those of the lines `start_line` to `end_line`, counted from 1, both included."""
    data = _read_text(workspace, path)
    if start_line is None and end_line is None:
        return data
    lines = _lines(data)
    start = 1 if start_line is None else start_line
    end = len(lines) if end_line is None else end_line
    if not 1 <= start <= max(len(lines), 1):
        raise FileProblem(f"{path}: start_line {start} is outside of its {len(lines)} lines")
    if end < start:
        raise FileProblem(f"{path}: end_line {end} is before start_line {start}")
    return b"".join(lines[start - 1 : end])


def write_file(workspace: Workspace, path: str, content: str) -> bytes:
    """Creates or overwrites a file and says so."""
    data = content.encode()
    new = workspace.write(path, data)
    return f"{'created' if new else 'overwrote'} {path} ({len(data)} bytes)".encode()


def edit_file(workspace: Workspace, path: str, old: str, new: str) -> bytes:
    """Replaces the one occurrence of `old`.

    Works on bytes, so all the rest of the file stays as it is, whatever its encoding. In a file with CRLF line ends,
    `old` and `new` may be given with LF, as models write them.
    """
    data = _read_text(workspace, path)
    before, after = old.encode(), new.encode()
    if not before:
        raise FileProblem("old is empty: give the exact text to replace")
    if before == after:
        raise FileProblem("old and new are the same: nothing to change")
    if before not in data and b"\r\n" in data and b"\r\n" not in before:
        before, after = before.replace(b"\n", b"\r\n"), after.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    places = _occurrences(data, before)
    if not places:
        hint = "; it differs only in white space around it" if before.strip() and before.strip() in data else ""
        raise FileProblem(f"{path}: old does not occur in the file{hint}: read the file and copy the text exactly")
    if len(places) > 1:
        numbers = ", ".join(str(data.count(b"\n", 0, place) + 1) for place in places[:10])
        raise FileProblem(
            f"{path}: old occurs {'more than 10' if len(places) > 10 else len(places)} times (lines {numbers}): "
            "add lines around it until it is unique"
        )
    place = places[0]
    workspace.write(path, data[:place] + after + data[place + len(before) :])
    return f"edited {path} at line {data.count(bytes([10]), 0, place) + 1}".encode()


def list_files(workspace: Workspace, path: str = "") -> bytes:
    """The paths below a directory, one a line."""
    lines, count = workspace.list(path, _LIST_LIMIT)
    if count > len(lines):
        lines.append(f"[... {count - len(lines)} more entries: list a directory further down ...]")
    return "\n".join(lines or ["(empty)"]).encode()


FILE_TOOLS: dict[str, Callable[..., bytes]] = {
    "read_file": read_file,
    "write_file": write_file,
    "edit_file": edit_file,
    "list_files": list_files,
}


def run_file_tool(workspace: Workspace, name: str, arguments: dict[str, Any]) -> tuple[bool, bytes]:
    """Whether the tool `name` did its work, and its output or what hindered it."""
    try:
        return True, FILE_TOOLS[name](workspace, **arguments)
    except FileProblem as problem:
        return False, str(problem).encode()


def _read_text(workspace: Workspace, path: str) -> bytes:
    data, size = workspace.read(path, FILE_LIMIT_BYTES)
    if size > FILE_LIMIT_BYTES:
        raise FileProblem(f"{path}: has {size} bytes; file tools take {FILE_LIMIT_BYTES} at most: use bash")
    if b"\0" in data[:_BINARY_SNIFF_BYTES]:
        raise FileProblem(f"{path}: is a binary file of {size} bytes: use bash to look into it")
    return data


def _lines(data: bytes) -> list[bytes]:
    """Lines as other tools count them: a lone CR (which bytes.splitlines takes for a line end) does not end one."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _occurrences(data: bytes, text: bytes) -> list[int]:
    """Where `text` occurs, overlaps included; at most the first 11 places."""
    places: list[int] = []
    place = data.find(text)
    while place >= 0 and len(places) <= 10:
        places.append(place)
        place = data.find(text, place + 1)
    return places
