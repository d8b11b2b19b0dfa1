"""Trajectories from runs' tables, whose rows lie in many parts and in no order, in bounded memory.

The rows of the chosen agents go to disk in buckets, each of agents of some 32 MB that follow each other; then one
bucket after the other is read, sorted and given out. (DuckDB can sort such rows too, but it gave up at 1,000,000 turns
with a memory limit of 512 MB, and took 0.9 GB for 100,000.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from concur_batch.agent.rows import recorded_call
from concur_batch.export.trajectory import Trajectory, Turn
from concur_batch.trace.attempts import rows_of
from concur_batch.trace.files import TraceError
from concur_batch.trace.reading import Run

# What rows weigh in Arrow's memory, roughly: a token by its id and its text, which stands in a call's output too; a
# turn by its other columns and those of its calls.
_TOKEN_BYTES = 12
_TURN_BYTES = 800
_BUCKET_BYTES = 32 << 20
_MOST_BUCKETS = 256  # each is an open file; beyond 8 GB of rows they are larger
_PLACE = "place"  # of an agent among the chosen ones
_ORDER = {"agents": (), "turns": ("turn",), "tools": ("turn", "call")}

Numbers = npt.NDArray[np.int64]
Rows = list[dict[str, Any]]


def assembled(
    runs: Sequence[Run], chosen: pa.Table, scratch: Path, on_read: Callable[[str, int], None]
) -> Iterator[Trajectory]:
    """The trajectories of the chosen agents in the order of those rows, which have `run` (its number), `agent_id`,
    `attempt`, `turns` and `context_tokens`. A turn that is not on record is missing.

    `scratch` is an empty directory, which needs space for the rows, and is empty again at the end. `on_read` is told of
    each table how many rows have been read. Raises TraceError, also where the tables change underneath, and OSError
    for the scratch.
    """
    buckets = bucket_of(chosen["turns"].to_numpy(), chosen["context_tokens"].to_numpy())
    numbers = chosen["run"].to_numpy()
    for table in _ORDER:
        _scatter(runs, table, chosen, buckets, scratch, on_read)
    for bucket in np.unique(buckets).tolist():
        agents, turns, tools = (_gather(scratch, table, bucket) for table in _ORDER)
        for place in np.flatnonzero(buckets == bucket).tolist():
            run = runs[numbers[place]]
            if place not in agents:
                raise TraceError(f"{run.path}: a result was withdrawn while it was read; export it again")
            name = run.manifest["run"]
            yield _trajectory(name, agents.pop(place)[0], turns.pop(place, []), tools.pop(place, []))


def bucket_of(turns: Numbers, tokens: Numbers) -> Numbers:
    """For each agent the number of its bucket, which never falls from one agent to the next."""
    ends = np.cumsum(turns.astype(np.int64) * _TURN_BYTES + tokens * _TOKEN_BYTES)
    size = max(_BUCKET_BYTES, -(-int(ends[-1]) // _MOST_BUCKETS)) if len(ends) else 1
    return np.asarray((ends - 1) // size, np.int64)


def _scatter(
    runs: Sequence[Run],
    table: str,
    chosen: pa.Table,
    buckets: Numbers,
    scratch: Path,
    on_read: Callable[[str, int], None],
) -> None:
    """Write the chosen agents' rows of a table into a file a bucket, each with its agent's place."""
    writers: dict[int, Any] = {}
    read = 0
    with ExitStack() as files:
        for number, run in enumerate(runs):
            places = pc.indices_nonzero(pc.equal(chosen["run"], number))
            of_run = chosen.take(places)
            final = pc.field("final") if table == "agents" else None
            for batch in run.batches(table, filter=final):
                read += batch.num_rows
                on_read(table, read)
                rows, at = _matched(batch, of_run)
                at = places.to_numpy()[at].astype(np.int64)
                order = np.argsort(at, kind="stable")
                rows, at = rows[order], at[order]
                wanted = batch.take(pa.array(rows)).append_column(_PLACE, pa.array(at))
                ends = (np.flatnonzero(np.diff(buckets[at])) + 1).tolist()
                for start, end in pairwise([0, *ends, len(at)] if len(at) else []):
                    bucket = int(buckets[at[start]])
                    if bucket not in writers:
                        options = pa.ipc.IpcWriteOptions(compression="lz4")
                        writer = pa.ipc.new_stream(str(_file(scratch, table, bucket)), wanted.schema, options=options)
                        writers[bucket] = files.enter_context(writer)
                    writers[bucket].write_batch(wanted.slice(start, end - start))


def _matched(batch: pa.RecordBatch, agents: pa.Table) -> tuple[Numbers, Numbers]:
    """The rows of the batch that are of an attempt of these agents, and of each the number of its agent."""
    found = pc.index_in(batch["agent_id"], agents["agent_id"].combine_chunks())
    rows = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
    at = found.drop_null().to_numpy()
    same = batch["attempt"].to_numpy()[rows] == agents["attempt"].to_numpy()[at]
    return rows[same], at[same]


def _gather(scratch: Path, table: str, bucket: int) -> dict[int, Rows]:
    """The rows of a bucket by their agents' places, in order."""
    file = _file(scratch, table, bucket)
    if not file.exists():
        return {}
    with pa.OSFile(str(file)) as source:
        found = pa.ipc.open_stream(source).read_all()
    file.unlink()
    found = found.sort_by([(name, "ascending") for name in (_PLACE, *_ORDER[table])])
    places = found[_PLACE].to_numpy()
    rows = rows_of(found.drop_columns([_PLACE]))
    ends = (np.flatnonzero(np.diff(places)) + 1).tolist()
    return {int(places[start]): rows[start:end] for start, end in pairwise([0, *ends, len(rows)])}


def _trajectory(run: str, agent: Mapping[str, Any], turns: Rows, tools: Rows) -> Trajectory:
    calls: dict[int, list[Any]] = {}
    for row in tools:
        calls.setdefault(row["turn"], []).append(recorded_call(row))
    found = []
    for row in turns:
        delta, output, logprobs = (row.pop(name) for name in ("input_delta_ids", "output_ids", "output_logprobs"))
        found.append(Turn(row, delta, output, logprobs, calls.get(row["turn"], ())))
    return Trajectory(run, agent, found)


def _file(scratch: Path, table: str, bucket: int) -> Path:
    return scratch / f"{table}-{bucket}.arrow"
