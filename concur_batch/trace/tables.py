"""Where the Parquet tables of a run are: in the run directory, or at a `pyarrow.fs` URI. A file is whole or absent."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs

from concur_batch.trace.files import TEMP_SUFFIX, TraceError, disk_error, make_directory, replacing, sync_directory
from concur_batch.trace.journal import JOURNAL
from concur_batch.trace.manifest import MANIFEST, read_manifest
from concur_batch.trace.schema import SCHEMAS

# Object stores in which what is being written has no name before it is whole.
_ATOMIC_PUT = ("s3", "gcs")
_DELETIONS = 16  # at once: an object store takes some 10 ms for each


class Tables:
    """A place with a directory of files for each table of SCHEMAS.

    `uri` is a `pyarrow.fs` URI, or None for `run_dir` itself. A file on its way to a URI is written to the run's
    journal directory first. Every method raises TraceError, the constructor also for a URI that nothing is known of.
    """

    def __init__(self, run_dir: Path, uri: str | None = None) -> None:
        self.uri = uri or str(run_dir)
        self._staging = run_dir / JOURNAL
        self.filesystem: Any = pyarrow.fs.LocalFileSystem()
        self._root = str(run_dir)
        try:
            if uri is not None:
                self.filesystem, self._root = pyarrow.fs.FileSystem.from_uri(uri)
        except (ValueError, OSError, pa.ArrowException) as error:
            raise TraceError(f"cannot use {uri} for tables: {' '.join(str(error).split())}") from error
        self._local = self.filesystem.type_name == "local"

    def make(self) -> None:
        """Makes the directories, where the place has any."""
        for table in SCHEMAS:
            if self._local:
                make_directory(Path(self._root) / table)
            elif self.filesystem.type_name not in _ATOMIC_PUT:
                with self._told("make directory", table):
                    self.filesystem.create_dir(self.path(table))

    def path(self, table: str, name: str = "") -> str:
        """The path of a file in `filesystem`, or of the table's directory."""
        return "/".join(part for part in (self._root, table, name) if part)

    def sizes(self, table: str) -> dict[str, int]:
        """The files of a table, of whatever kind, with their sizes in bytes."""
        selector = pyarrow.fs.FileSelector(self.path(table), allow_not_found=True)
        with self._told("list", table):
            return {file.base_name: file.size for file in self.filesystem.get_file_info(selector) if file.is_file}

    @contextmanager
    def writing(self, table: str, name: str) -> Iterator[Path]:
        """Yields a temporary path; what is written there is durable as `name` when the block ends well.

        If anything fails, what was there is as it was. Writing the same file again is no harm.
        """
        if self._local:
            with replacing(Path(self.path(table, name))) as temporary:
                yield temporary
            return
        make_directory(self._staging)
        temporary = self._staging / f".{name}.{table}.{os.getpid()}{TEMP_SUFFIX}"
        try:
            yield temporary
            with self._told("write", table, name):
                self._put(temporary, table, name)
        except OSError as error:
            raise disk_error("write", temporary, error) from error
        finally:
            with suppress(OSError):
                temporary.unlink()

    def move(self, table: str, name: str, new_name: str) -> None:
        """Gives a file another name; in an object store both are there for a moment."""
        with self._told("rename", table, name):
            self.filesystem.move(self.path(table, name), self.path(table, new_name))
            self._sync(table)

    def delete(self, table: str, names: Collection[str]) -> None:
        """Deletes files; those that are gone already are no error."""

        def delete(name: str) -> None:
            with self._told("delete", table, name), suppress(FileNotFoundError):
                self.filesystem.delete_file(self.path(table, name))

        if not names:
            return
        with ThreadPoolExecutor(_DELETIONS) as pool:
            list(pool.map(delete, names))
        with self._told("delete in", table):
            self._sync(table)

    def probe(self) -> None:
        """For a run that begins: raises TraceError if nothing can be written here, or tables are here already."""
        name = f".probe.{os.getpid()}{TEMP_SUFFIX}"
        self.make()
        for table in SCHEMAS:
            if self.sizes(table):
                raise TraceError(f"{self.uri} holds the tables of a run already")
        table = next(iter(SCHEMAS))
        with self.writing(table, name) as temporary:
            temporary.write_bytes(b"probe")
        self.delete(table, [name])

    def _put(self, temporary: Path, table: str, name: str) -> None:
        atomic = self.filesystem.type_name in _ATOMIC_PUT
        target = self.path(table, name if atomic else temporary.name)
        # In one piece: closing a stream after half of the pieces would make an object of that half.
        with pa.memory_map(str(temporary)) as file, self.filesystem.open_output_stream(target) as stream:
            stream.write(file.read_buffer())
        if not atomic:
            self.filesystem.move(target, self.path(table, name))

    def _sync(self, table: str) -> None:
        if self._local:
            sync_directory(Path(self.path(table)))

    @contextmanager
    def _told(self, what: str, table: str, name: str = "") -> Iterator[None]:
        base, mark, query = self.uri.partition("?")
        try:
            yield
        except OSError as error:
            raise disk_error(what, f"{'/'.join(filter(None, (base, table, name)))}{mark}{query}", error) from error


def tables_of(run_dir: Path, uri: str | None = None) -> Tables:
    """The tables of a run: at the URI, by default where the manifest says. Raises TraceError."""
    if uri is None and (run_dir / MANIFEST).exists():
        uri = read_manifest(run_dir).get("tables")
    return Tables(run_dir, uri)


def tables_uri(storage: str, run: str) -> str:
    """The URI of a run's own tables under the URI that the workload gives for all: the run's name after its path."""
    base, mark, query = storage.partition("?")
    return f"{base.rstrip('/')}/{run}{mark}{query}"
