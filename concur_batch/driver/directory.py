"""The run's own directory: all that the run needs and makes, so that other nodes need nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from concur_batch.trace.files import TraceError, disk_error, locked, make_directory, replacing
from concur_batch.trace.writer import recover
from concur_batch.workload.fingerprint import TOKENIZER_FILES


def make_run_directory(output: Path, name: str, tokenizer: Path) -> Path:
    """Make `<output>/<name>-<date>-<time>` with the tokenizer in it. Raises TraceError where it cannot be written,
    or has no locks: they tell the journals of living processes from those of killed ones."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    number = 0
    try:
        output.mkdir(parents=True, exist_ok=True)
        while True:
            path = output / (f"{name}-{stamp}" + (f"-{number}" if number else ""))
            try:
                path.mkdir()
                break
            except FileExistsError:
                number += 1
        _try_lock(path)
        model = path / "model"
        model.mkdir()
        for file in TOKENIZER_FILES:
            if (tokenizer / file).exists():
                shutil.copyfile(tokenizer / file, model / file)
    except OSError as error:
        raise disk_error("make the run directory", output, error) from None
    return path.absolute()


def model_of(run_dir: Path) -> dict[str, bytes]:
    """The files of the run's tokenizer, for `put_model`."""
    return {file.name: file.read_bytes() for file in (run_dir / "model").iterdir()}


def put_model(run_dir: Path, files: dict[str, bytes]) -> None:
    """Write them on a node that shares no disk with the driver's. Raises TraceError."""
    make_directory(run_dir / "model")
    for name, content in files.items():
        if not (run_dir / "model" / name).exists():
            with replacing(run_dir / "model" / name) as temporary:
                temporary.write_bytes(content)


def recover_journals(run_dir: Path, names: Iterable[str], storage: str | None) -> None:
    """Store what those recorders, killed, left on the node that this is called on. Raises TraceError.

    For the nodes of a run that goes on, before its tables are read; `names` are the `journals` of its manifest. What
    older recorders left is not stored: while their disks were away the run has gone on without it.
    """
    if run_dir.is_dir():
        for name in names:
            recover(run_dir, name, storage)


def _try_lock(run_dir: Path) -> None:
    try:
        with locked(run_dir / ".lock"):
            pass
    except TraceError:
        run_dir.rmdir()
        raise
