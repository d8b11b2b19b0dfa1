"""`make bench-export`: what an export costs, at 100,000 and at 1,000,000 turns, and that its memory does not grow.

The runs are written first (see many_turns.py); what is measured is `concur export` as a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from concur_batch.bench.many_turns import TURNS, write_many_turns
from concur_batch.trace.reading import Run

_SIZES = (100_000, 1_000_000)
_CASES = (("tokens", "parquet"), ("messages", "jsonl"))


@dataclass(frozen=True, slots=True)
class Exported:
    """One line of the table; `peak_bytes` is the largest resident set of the process."""

    name: str
    turns: int
    seconds: float
    cpu_seconds: float
    size_bytes: int
    peak_bytes: int


def measure(run: Run, format: str, files: str, out: Path) -> Exported:
    """One export, from the command's start to its end. Raises SystemExit with its log where it fails."""
    command = [str(Path(sys.executable).with_name("concur")), "export", str(run.path), "--out", str(out)]
    command += ["--format", format, "--files", files, "--json"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}: {printed.decode()[-2000:]}")
    train = json.loads(printed.splitlines()[-1])["splits"]["train"]
    seconds = time.monotonic() - began
    cpu_seconds = used.ru_utime + used.ru_stime
    return Exported(
        f"{format}, {files}", train["turns"], seconds, cpu_seconds, train["size_bytes"], used.ru_maxrss * 1024
    )


def main() -> None:
    """Measure and print."""
    found: list[Exported] = []
    with tempfile.TemporaryDirectory(prefix="concur-export-") as temporary:
        directory = Path(temporary)
        for turns in _SIZES:
            run = write_many_turns(directory / f"run-{turns}", turns // TURNS)
            for format, files in _CASES:
                found.append(measure(run, format, files, directory / f"{format}-{turns}"))
    table = Table(title=f"{TURNS} turns an agent", title_justify="left")
    for name in (
        "what",
        "turns",
        "turns/s",
        "CPU s / 1,000 turns",
        "MB/s written",
        "peak memory",
        "times that of the smaller",
    ):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    for each in sorted(found, key=lambda each: (each.name, each.turns)):
        smaller = min((other for other in found if other.name == each.name), key=lambda other: other.turns)
        table.add_row(
            each.name,
            f"{each.turns:,}",
            f"{each.turns / each.seconds:,.0f}",
            f"{each.cpu_seconds / each.turns * 1000:.3f}",
            f"{each.size_bytes / each.seconds / 1e6:,.1f}",
            f"{each.peak_bytes / 1e6:,.0f} MB",
            f"{each.peak_bytes / smaller.peak_bytes:.2f}" if each is not smaller else "",
        )
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
