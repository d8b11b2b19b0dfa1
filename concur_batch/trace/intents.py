"""Intents: which calls a turn is about to run, durable before the first of them runs. Whoever comes after a kill knows
by them what may have been done though no record tells of it.

intents/<life>-<host>-<number>.jsonl    one JSON object a turn; a host's own, on its node's disk
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from concur_batch.trace.appending import AppendFile
from concur_batch.trace.files import TraceError, disk_error, make_directory
from concur_batch.trace.outbox import Outbox

Row = Mapping[str, Any]

INTENTS = "intents"  # the directory in the run directory
_SUFFIX = ".jsonl"
# From here on another file is begun, without the turns that are on record by then.
_MOST_BYTES = 4 << 20


@dataclass(slots=True)
class _Open:
    """An intent whose turn may not be on record yet; `record` is its number among the records, once it has one."""

    line: bytes
    record: int | None = None


class Intents:
    """Those of one host, in the `life`-th life of its run: 0 is its first, each resume begins another.

    Nothing is written before the first intent. Where it cannot be written, those who wait go on waiting, and
    `last_error` says why. `is_recorded` tells whether the record of a number is durable.
    """

    def __init__(self, run_dir: Path, host: str, life: int, is_recorded: Callable[[int], bool]) -> None:
        self._directory = run_dir / INTENTS
        self._stem = f"{life}-{host}"
        self._is_recorded = is_recorded
        self._open: dict[tuple[str, int], _Open] = {}
        self._file: AppendFile | None = None
        self._number = 0
        self._most_bytes = _MOST_BYTES
        # A thread of its own: nobody's tool is to wait behind the snapshots of others.
        self._thread = ThreadPoolExecutor(1, "intents")
        self._outbox: Outbox[bytes] = Outbox(self._send)

    @property
    def last_error(self) -> Exception | None:
        """Why intents cannot be written for now."""
        return self._outbox.last_error

    async def declare(self, place: str, turn: int, row: Row) -> None:
        """Returns once it is durable that this turn of the attempt called `place` begins to run what the row says."""
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
        self._open[place, turn] = _Open(line)
        await self._outbox.sent(self._outbox.put(line))

    def recorded(self, place: str, turn: int, record: int) -> None:
        """The turn is over; the record of that number, when durable, tells what came of it."""
        if (intent := self._open.get((place, turn))) is not None:
            intent.record = record

    async def close(self) -> None:
        """Ends it; the file stays."""
        await self._outbox.close()
        await asyncio.to_thread(self._thread.shutdown)  # what it writes may not meet a closed file
        if self._file is not None:
            self._file.close()

    async def _send(self, lines: list[bytes]) -> None:
        loop = asyncio.get_running_loop()
        if self._file is None or self._file.size_bytes >= self._most_bytes:
            self._open = {key: intent for key, intent in self._open.items() if not self._is_done(intent)}
            lines = [intent.line for intent in self._open.values()]  # these too
            await loop.run_in_executor(self._thread, self._begin_file, lines)
        else:
            await loop.run_in_executor(self._thread, _append, self._file, lines)

    def _is_done(self, intent: _Open) -> bool:
        return intent.record is not None and self._is_recorded(intent.record)

    def _begin_file(self, lines: list[bytes]) -> None:
        """Put the lines into a new file instead of the one before, if there is one. Raises TraceError."""
        make_directory(self._directory)
        file = AppendFile(self._directory / f"{self._stem}-{self._number:06d}{_SUFFIX}", "intents")
        self._number += 1
        try:
            _append(file, lines)
        except TraceError:
            _remove(file)
            raise
        before, self._file = self._file, file
        self._most_bytes = file.size_bytes + _MOST_BYTES
        if before is not None:
            _remove(before)


def intent_files(run_dir: Path, life: int | None = None) -> list[Path]:
    """The files of one life of a run, or of all."""
    return sorted((run_dir / INTENTS).glob(f"{'*' if life is None else life}-*{_SUFFIX}"))


def read_intents(run_dir: Path, life: int | None = None) -> list[Row]:
    """The intents of one life of a run, or of all, in no order that means anything; those of turns that are on record
    may be among them. Raises TraceError.

    To find the others, read the turns that are on record after this. Lines that are not whole are left out: they were
    never durable, so what they told of had not begun.
    """
    while True:
        try:
            contents = [path.read_bytes() for path in intent_files(run_dir, life)]
        except FileNotFoundError:  # its host has begun another
            continue
        except OSError as error:
            raise disk_error("read intents", run_dir / INTENTS, error) from error
        return [row for content in contents for row in _rows(content)]


def unrecorded(intents: Iterable[Row], recorded: Collection[tuple[str, int, int]]) -> list[Row]:
    """The newest intent of each turn that is not among the recorded (agent, attempt, turn)."""
    by_time = sorted(intents, key=lambda row: float(row["started_seconds"]))
    newest = {(row["agent_id"], row["attempt"], row["turn"]): row for row in by_time}
    return [row for key, row in newest.items() if key not in recorded]


def forget_intents(run_dir: Path) -> None:
    """Remove them all: every agent has ended, on record."""
    with contextlib.suppress(OSError):  # nobody asks for them any more
        for path in intent_files(run_dir):
            path.unlink()
        (run_dir / INTENTS).rmdir()


def _rows(content: bytes) -> Iterable[Row]:
    for line in content.split(b"\n")[:-1]:  # behind the last newline is nothing, or a torn line
        with contextlib.suppress(orjson.JSONDecodeError):
            yield orjson.loads(line)


def _append(file: AppendFile, lines: list[bytes]) -> None:
    file.write(b"".join(lines), len(lines))
    try:
        file.sync()
    except TraceError:
        file.rollback()
        raise


def _remove(file: AppendFile) -> None:
    file.close()
    with contextlib.suppress(OSError):
        file.path.unlink()
