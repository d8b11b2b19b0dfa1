"""`make bench-durability`: what journal and Parquet cost a turn and store a token, at 2,000 agents.

The run is that of bench-scale with histories to 8,000 tokens, measured as there. Then its rows go once more through the
code of hosts and recorder, alone in this process and without waiting: encoding; the journal, synced every 0.2 s of the
run's time, to which each host appends once a sync, since it has one call under way; parts, every 10 s of it or 32 MB of
journal; and the merge at the end. The median of several times.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from concur_batch.bench.load import engine_server
from concur_batch.bench.scale import Measured, measure_run
from concur_batch.trace.compaction import compact
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.reading import Run
from concur_batch.trace.schema import SCHEMAS
from concur_batch.trace.tables import Tables
from concur_batch.trace.writer import Writer

_AGENTS = 2000
_HOSTS = 2
_SYNC_SECONDS = 0.2
_PART_SECONDS = 10.0
# The first one also pays for memory that a process asks the system for once.
_REPETITIONS = 5
_KEY = ("agent_id", "attempt", "turn")


class Costs:
    """Of the stages in their order: CPU seconds of this process, and bytes on disk afterwards."""

    def __init__(self) -> None:
        self.cpu_seconds: dict[str, float] = {}
        self.bytes: dict[str, int] = {}

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Counts the CPU of the block to the stage."""
        before = time.process_time()
        yield
        self.cpu_seconds[stage] = self.cpu_seconds.get(stage, 0.0) + time.process_time() - before


def record_again(run: Run, directory: Path) -> Costs:
    """What it costs to record the agents' rows of a run, into a new directory."""
    costs, committed = Costs(), _rows(run)
    with costs.of("encode"):
        lines = [(seconds, _encode(rows)) for seconds, rows in committed]
    writer, sealed = Writer(directory, "again"), []
    rotated = lines[0][0]
    with costs.of("journal"):
        for _, group in groupby(lines, key=lambda line: line[0] // _SYNC_SECONDS):
            waiting = list(group)
            for host in range(_HOSTS):
                if calls := waiting[host::_HOSTS]:
                    writer.append(b"".join(line for _, line in calls))
            writer.sync()
            if writer.full or waiting[-1][0] - rotated >= _PART_SECONDS:
                sealed.append(writer.swap(writer.new_segment()))
                rotated = waiting[-1][0]
        sealed.append(writer.swap(writer.new_segment()))
    costs.bytes["journal"] = sum(segment.size_bytes for segment in sealed)
    tables = Tables(directory)
    for segment in sealed:
        with costs.of("Parquet"):
            writer.store(segment)
    costs.bytes["Parquet"] = _size(tables)
    with costs.of("merge"):
        compact(tables)
    costs.bytes["merge"] = _size(tables)
    writer.close()
    return costs


def median_of(measured: Sequence[Costs]) -> Costs:
    """The median of each stage; the bytes are always the same."""
    found = Costs()
    found.bytes = measured[0].bytes
    for stage in measured[0].cpu_seconds:
        found.cpu_seconds[stage] = statistics.median(costs.cpu_seconds[stage] for costs in measured)
    return found


def _rows(run: Run) -> list[tuple[float, dict[str, list[dict[str, Any]]]]]:
    """What is committed together, by table, in the order of the run's time; ids are arrays, as a host has them."""
    tools = defaultdict(list)
    for row in run.table("tools").to_pylist():
        tools[tuple(row[name] for name in _KEY)].append(row)
    found = []
    for row in run.table("turns").to_pylist():
        for name in ("input_delta_ids", "output_ids"):
            row[name] = np.array(row[name], np.int32)
        if row["output_logprobs"] is not None:
            row["output_logprobs"] = np.array(row["output_logprobs"], np.float32)
        found.append((row["ended_seconds"], {"tools": tools[tuple(row[name] for name in _KEY)], "turns": [row]}))
    found += [(row["ended_seconds"], {"agents": [row]}) for row in run.table("agents").to_pylist()]
    return sorted(found, key=lambda rows: rows[0])


def _encode(rows: dict[str, list[dict[str, Any]]]) -> bytes:
    if "turns" in rows:
        return encode_turn(rows["turns"][0], rows["tools"])
    return encode("agents", rows["agents"][0])


def _size(tables: Tables) -> int:
    return sum(sum(tables.sizes(table).values()) for table in SCHEMAS)


def _shares(cpu_seconds: float, turns: int, whole: Measured) -> tuple[str, str]:
    each = cpu_seconds / turns * 1000
    return f"{each:.4f}", f"{each / whole.cpu_seconds:.1%}"


def _bytes(costs: Costs, stage: str, tokens: int) -> str:
    return f"{costs.bytes[stage] / tokens:.2f}" if stage in costs.bytes else ""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="concur-durability-") as temporary:
        directory = Path(temporary)
        script = {"turns": [5, 7], "output_words": [8, 24]}
        with engine_server(directory, {"synthetic": script}) as url:
            tools = {"kind": "synthetic", "wait_seconds": [0.5, 5.0], "observation_words": [100, 1000]}
            overrides = {"agent": {"hosts": _HOSTS}, "tools": tools, "control": {"policy": "none"}}
            whole = measure_run("the whole run", directory, _AGENTS, url, overrides)
        [run_dir] = (directory / "runs").iterdir()
        run = Run(run_dir)
        turns = run.table("turns", columns=["input_delta_ids", "output_ids"])
        tokens = sum(len(ids) for column in turns.columns for ids in column.to_numpy())
        measured = [record_again(run, directory / f"again-{number}") for number in range(_REPETITIONS)]
        costs = median_of(measured)
    title = f"{turns.num_rows:,} turns of {_AGENTS:,} agents, {tokens:,} token ids stored"
    table = Table(title=title, title_justify="left")
    for name in ("what", "CPU s / 1,000 turns", "of the run", "bytes a token"):
        table.add_column(name, justify="left" if name == "what" else "right", no_wrap=True)
    table.add_row(whole.name, f"{whole.cpu_seconds:.3f}", "", "")
    for stage, cpu_seconds in costs.cpu_seconds.items():
        table.add_row(stage, *_shares(cpu_seconds, turns.num_rows, whole), _bytes(costs, stage, tokens))
    table.add_row("together", *_shares(sum(costs.cpu_seconds.values()), turns.num_rows, whole), "")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
