"""The run's own directory: all that the run needs and makes, so that other nodes need nothing else."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

from concur_batch.trace.files import TraceError, disk_error, locked
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


def _try_lock(run_dir: Path) -> None:
    try:
        with locked(run_dir / ".lock"):
            pass
    except TraceError:
        run_dir.rmdir()
        raise
