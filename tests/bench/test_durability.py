from __future__ import annotations

from pathlib import Path

from concur_batch.bench.durability import record_again
from concur_batch.trace.encode import encode, encode_turn
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from concur_batch.trace.writer import Writer
from tests.trace.trace_rows import plain_row, turn


def test_the_rows_that_are_recorded_again_are_the_runs(tmp_path: Path) -> None:
    for path in (tmp_path / "run", tmp_path / "again"):
        write_manifest(path, {})
    writer = Writer(tmp_path / "run", "n")
    for number in range(9):
        row, tools = turn("a", number)
        writer.append(encode_turn(row | {"ended_seconds": 4.0 * number}, tools))
    writer.append(encode("agents", plain_row("agents", ended_seconds=40.0)))
    writer.close()
    run, again = Run(tmp_path / "run"), Run(tmp_path / "again")
    costs = record_again(run, tmp_path / "again")
    for table in ("agents", "turns", "tools"):
        assert again.table(table).to_pylist() == run.table(table).to_pylist()
    assert list(costs.cpu_seconds) == ["encode", "journal", "Parquet", "merge"]
    assert costs.bytes["Parquet"] > costs.bytes["merge"] > 0 < costs.bytes["journal"]
    assert len(list((tmp_path / "again" / "turns").iterdir())) == 1  # of five parts
