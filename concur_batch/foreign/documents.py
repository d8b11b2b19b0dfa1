"""Files of JSON or JSON Lines, compressed with gzip or not, as values with the place that a message can name."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from concur_batch.workload.errors import shown_path

_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (".gz", ".json", *_LINES, ".traj")  # from a name's end on, as in a.traj.json.gz
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # some editors write it first
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON value: where it stands, and the name that its place gives it."""

    where: str
    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or a line that is no JSON."""

    where: str
    reason: str


def read_file(path: Path) -> Iterator[Document | Unreadable]:
    """The values of a file: one a line where its name ends in .jsonl, else one. Nothing wrong with it raises."""
    where, stem = (text.encode(errors="replace").decode() for text in (shown_path(path), path.name))
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            stream: BinaryIO = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_packed else raw
            if path.name.lower().removesuffix(".gz").endswith(_LINES):
                for line, text in enumerate(stream, 1):
                    if text.strip():
                        yield _document(text, f"{where}:{line}", f"{stem}-{line}")
            else:
                yield _document(stream.read(), where, stem)
    except (OSError, EOFError, zlib.error) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or str(error)
        yield Unreadable(where, f"cannot be read: {said[:1].lower()}{said[1:]}")


def _document(text: bytes, where: str, name: str) -> Document | Unreadable:
    try:
        return Document(where, name, orjson.loads(text.removeprefix(_BYTE_ORDER_MARK)))
    except orjson.JSONDecodeError as error:
        return Unreadable(where, f"is not JSON: {error}")
