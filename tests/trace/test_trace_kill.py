"""A recorder killed by SIGKILL, again and again on the same run: every acknowledged row is there, and once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.fs
import pytest
from trace_rows import part_rows

from concur_batch.trace.ending import finish
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.tables import tables_of
from concur_batch.trace.writer import recover
from tests.s3_server import ENV, s3_server

AGENTS = """
import asyncio, itertools, os, sys
sys.path.insert(0, sys.argv[3])
from trace_rows import turn
from concur_batch.trace.encode import encode_turn
from concur_batch.trace.recorder import Recorder

async def agent(recorder, name):
    for number in itertools.count():
        await recorder.commit(encode_turn(*turn(name, number, ids=list(range(number % 50)))))
        os.write(1, f"{name} {number}\\n".encode())

async def main():
    recorder = Recorder(sys.argv[1], "n", storage=sys.argv[4] or None, commit_seconds=0.001, segment_rows=37)
    await asyncio.gather(*(agent(recorder, f"{sys.argv[2]}-{index}") for index in range(8)))

asyncio.run(main())
"""


def plain_rows(run_dir: Path, uri: str | None, table: str) -> list[dict[str, Any]]:
    """What any Parquet reader finds."""
    if uri is None:
        return part_rows(run_dir, table)
    filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    rows: list[dict[str, Any]] = ds.dataset(f"{path}/{table}", filesystem=filesystem).to_table().to_pylist()
    return rows


@pytest.mark.parametrize("place", ["here", "s3"])
def test_every_acknowledged_row_survives_once(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "here":
        every_acknowledged_row_survives_once(tmp_path, None, (1, 321, 600))
        return
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    with s3_server() as server:
        server.make_bucket("bucket")
        every_acknowledged_row_survives_once(tmp_path, server.uri("bucket/run"), (1, 200))


def every_acknowledged_row_survives_once(tmp_path: Path, uri: str | None, rounds: Sequence[int]) -> None:
    acknowledged: list[tuple[str, int]] = []
    for round_, enough in enumerate(rounds):
        process = subprocess.Popen(
            [sys.executable, "-c", AGENTS, str(tmp_path), str(round_), str(Path(__file__).parent), uri or ""],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(enough)]
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.readlines()
        assert process.wait() == -signal.SIGKILL
        for line in lines:
            name, number = line.split()
            acknowledged.append((name.decode(), int(number)))
    assert len(acknowledged) >= sum(rounds)

    write_manifest(tmp_path, {"tables": uri})
    live = Run(tmp_path).table("turns", columns=["agent_id", "turn"]).to_pylist()
    recovered = recover(tmp_path)
    assert (recovered.live_segments, recovered.rejected) == (0, 0)
    assert [*(tmp_path / "journal").iterdir(), *(tmp_path / "rejected").iterdir()] == []
    assert list(tmp_path.rglob(".*")) == []

    turns = Counter((row["agent_id"], row["turn"]) for row in plain_rows(tmp_path, uri, "turns"))
    assert set(turns.values()) == {1}
    assert set(acknowledged) <= set(turns)
    assert turns == Counter((row["agent_id"], row["turn"]) for row in live)
    # What is there beyond that was in flight: at most one turn an agent.
    assert len(turns) - len(acknowledged) <= 8 * len(rounds)
    calls = Counter((row["agent_id"], row["turn"]) for row in plain_rows(tmp_path, uri, "tools"))
    assert calls == Counter({turn: turn[1] % 3 for turn in turns if turn[1] % 3})
    assert finish(tmp_path) is None
    assert turns == Counter((row["agent_id"], row["turn"]) for row in plain_rows(tmp_path, uri, "turns"))
    assert len(tables_of(tmp_path).sizes("turns")) == 1
