"""The recorder: one actor a node, which makes the turns of that node's agents durable in groups.

The class is plain asyncio; the driver applies `ray.remote` to it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

from concur_batch.trace.files import TraceError
from concur_batch.trace.journal import Journal
from concur_batch.trace.writer import Writer, recorded_lines, recover


class Recorder:
    """Group commit over a Writer: many commits share one sync, at most one each `commit_seconds`.

    On construction, what a killed recorder of the same name left is recovered. `storage` and `segment` are as Writer's.
    """

    def __init__(
        self,
        run_dir: Path | str,
        name: str,
        *,
        storage: str | None = None,
        commit_seconds: float = 0.2,
        **segment: Any,
    ) -> None:
        self._writer = Writer(run_dir, name, storage=storage, **segment)
        # Rows of a killed recorder that had not been acknowledged are here and will be sent again, byte for byte.
        self._known = recorded_lines(run_dir, name)
        self._recovered = recover(run_dir, name, storage)
        self._commit_seconds = commit_seconds
        self._waiting: list[tuple[Journal, asyncio.Future[None]]] = []  # commits not yet durable
        self._sealed: list[Journal] = []  # durable segments that are not Parquet yet
        self._syncing = asyncio.Lock()
        self._rotating = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flush_runs = False
        self._last_sync = -commit_seconds
        self._rows: Counter[str] = Counter()
        self._journal_bytes = 0
        self._syncs = 0
        self._rotation_error: str | None = None
        self._closed = False
        self._fenced: set[str] = set()

    async def commit(self, lines: bytes, sender: str | None = None) -> int:
        """Appends framed rows (of encode, encode_turn; any number joined) and returns their number once durable.

        Raises TraceError (disk full, read-only) and then none of the rows is recorded: the caller may commit them
        again. Raises ValueError for bytes that are not whole rows.
        """
        if self._closed or sender in self._fenced:
            raise TraceError(f"the recorder of {self._writer.run_dir} is closed" + (f" to {sender}" if sender else ""))
        lines = self._without_known(lines)
        if not lines:
            return 0
        first = not self._writer.open.size_bytes
        counts = self._writer.append(lines)
        if first:
            self._rotate_when_old(self._writer.open)
        durable = asyncio.get_running_loop().create_future()
        self._waiting.append((self._writer.open, durable))
        if not self._flush_runs:
            self._flush_runs = True
            self._spawn(self._flush())
        if self._writer.due and not self._rotating.locked():
            self._spawn(self._rotate_quietly(self._writer.open))
        await durable
        self._rows.update(counts)
        self._journal_bytes += len(lines)
        return counts.total()

    def _without_known(self, lines: bytes) -> bytes:
        if not self._known:
            return lines
        kept = []
        for line in lines.splitlines(keepends=True):
            if line in self._known:
                self._known.remove(line)
            else:
                kept.append(line)
        return b"".join(kept)

    async def fence(self, sender: str) -> None:
        """Takes no rows of that sender any more: it is dead, others go on from what it has sent, and a call of it that
        is still on its way must not come after they have looked."""
        self._fenced.add(sender)

    async def rotate(self) -> None:
        """Stores all rows committed before the call as Parquet; commits go on meanwhile.

        Raises TraceError; then the rows are safe in the journal and the next rotation tries again.
        """
        await self._rotate(self._writer.open)

    async def close(self) -> None:
        """Makes everything durable, stores it as Parquet and ends; further commits raise TraceError.

        Raises TraceError if storing fails; then the rows stay in the journal, for `recover`.
        """
        if self._closed:
            return
        self._closed = True
        async with self._rotating:
            async with self._syncing:
                await self._sync(self._writer.open)
            self._sealed.insert(0, self._writer.open)
            try:
                await self._store_sealed()
            finally:
                for segment in self._sealed:
                    segment.close()

    async def totals(self) -> dict[str, Any]:
        """Counts since construction, for people and tests.

        `rows` by table, `journal_bytes`, `syncs`: what became durable; `waiting_commits`; `parquet_rows` by table,
        `part_bytes`, `rejected_rows`, `unstored_segments` and `rotation_error` (the first since one succeeded, so that
        an outage is one text); `recovered_rows` by table: of a killed recorder of this name.
        """
        stored = self._writer.stored
        return {
            "rows": dict(self._rows),
            "journal_bytes": self._journal_bytes,
            "syncs": self._syncs,
            "waiting_commits": len(self._waiting),
            "parquet_rows": dict(stored.rows),
            "part_bytes": stored.part_bytes,
            "rejected_rows": stored.rejected + self._recovered.rejected,
            "unstored_segments": len(self._sealed),
            "rotation_error": self._rotation_error,
            "recovered_rows": dict(self._recovered.rows),
        }

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(max(0.0, self._last_sync + self._commit_seconds - time.monotonic()))
                async with self._syncing:
                    await self._sync(self._writer.open)
        finally:
            self._flush_runs = False

    async def _sync(self, segment: Journal) -> None:
        """Syncs a segment and answers its commits. Those that come while the sync runs wait for the next one."""
        group = self._take(segment)
        if not group:
            return
        try:
            await asyncio.to_thread(segment.sync)
        except TraceError as error:
            segment.rollback()  # also the rows that came during the sync
            for durable in group + self._take(segment):
                if not durable.done():
                    durable.set_exception(TraceError(str(error)))
        else:
            for durable in group:
                if not durable.done():
                    durable.set_result(None)
        self._syncs += 1
        self._last_sync = time.monotonic()

    def _take(self, segment: Journal) -> list[asyncio.Future[None]]:
        taken = [durable for journal, durable in self._waiting if journal is segment]
        self._waiting = [waiting for waiting in self._waiting if waiting[0] is not segment]
        return taken

    async def _store_sealed(self) -> None:
        """Stores them until one fails, which may take the object store's time limit. That one is tried last then, so
        that a damaged one does not hinder the others. Raises TraceError."""
        while self._sealed:
            segment = self._sealed[0]
            try:
                await asyncio.to_thread(self._writer.store, segment)
            except TraceError:
                self._sealed.append(self._sealed.pop(0))
                raise
            self._sealed.pop(0)
        self._rotation_error = None

    async def _rotate(self, segment: Journal) -> None:
        async with self._rotating:
            if self._sealed and not self._writer.full:  # no more open files than needed while nothing can be stored
                await self._store_sealed()
            if segment is self._writer.open and segment.size_bytes and not self._closed:
                successor = await asyncio.to_thread(self._writer.new_segment)
                async with self._syncing:
                    self._sealed.append(self._writer.swap(successor))
                    await self._sync(segment)
            await self._store_sealed()

    async def _rotate_quietly(self, segment: Journal) -> None:
        try:
            await self._rotate(segment)
        except TraceError as error:  # nothing is lost: the rows are durable in the journal
            self._rotation_error = self._rotation_error or str(error)

    def _rotate_when_old(self, segment: Journal) -> None:
        def rotate() -> None:
            if segment is self._writer.open:
                self._spawn(self._rotate_quietly(segment))

        asyncio.get_running_loop().call_later(self._writer.segment_seconds, rotate)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
