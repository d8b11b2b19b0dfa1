"""The manifest of a run: one JSON object in `manifest.json`, replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from concur_batch.trace.files import TraceError, make_directory, replacing

MANIFEST = "manifest.json"


def write_manifest(run_dir: Path | str, manifest: Mapping[str, Any]) -> None:
    """Writes the manifest durably, making the run directory if it is missing. Raises TraceError, or TypeError for
    a value that JSON cannot hold."""
    content = orjson.dumps(dict(manifest), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    make_directory(Path(run_dir))
    with replacing(Path(run_dir) / MANIFEST) as temporary:
        temporary.write_bytes(content)


def read_manifest(run_dir: Path | str) -> dict[str, Any]:
    """Reads the manifest. Raises TraceError where there is none (not a run directory) or it is not a JSON object."""
    path = Path(run_dir) / MANIFEST
    try:
        manifest = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        why = f"it holds no {MANIFEST}" if Path(run_dir).is_dir() else "there is no such directory"
        raise TraceError(f"not a run directory: {run_dir}: {why}") from None
    except OSError as error:
        raise TraceError(f"not a run directory: {run_dir}: {MANIFEST}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise TraceError(f"broken manifest {path}: {error}; mend the JSON by hand") from error
    if not isinstance(manifest, dict):
        raise TraceError(f"broken manifest {path}: not a JSON object; mend the JSON by hand")
    return manifest


def update_manifest(run_dir: Path | str, **changes: Any) -> dict[str, Any]:
    """Sets top-level entries of an existing manifest and returns the whole. Raises what reading and writing raise."""
    manifest = read_manifest(run_dir) | changes
    write_manifest(run_dir, manifest)
    return manifest
