"""Few rows out of many: the same as by a plain scan, and from no more row groups than hold them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_rows import turn

from concur_batch.trace.encode import encode_turn
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.narrowing import narrowed
from concur_batch.trace.reading import Run
from concur_batch.trace.writer import Writer

FILES = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), min_size=1, max_size=3)


@given(FILES, st.integers(1, 4))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_finds_what_a_scan_finds_in_the_groups_that_hold_it(
    tmp_path: Path, files: list[list[str]], rows_a_group: int
) -> None:
    for path in tmp_path.glob("*.parquet"):
        path.unlink()
    holding = 0
    for number, names in enumerate(files):
        table = pa.table({"name": names, "number": range(len(names))})
        pyarrow.parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=rows_a_group)
        groups = [names[first : first + rows_a_group] for first in range(0, len(names), rows_a_group)]
        holding += sum("b" in group for group in groups)
    parts, of_b = ds.dataset(tmp_path, format="parquet"), pc.field("name") == "b"
    found = narrowed(parts, of_b)
    assert found.to_table(filter=of_b).sort_by("number").equals(parts.to_table(filter=of_b).sort_by("number"))
    assert sum(len(fragment.row_groups) for fragment in found.get_fragments()) == holding


@pytest.mark.parametrize("agent", ["x", "y", "nobody"])
def test_a_run_gives_the_same_rows_either_way_from_parts_and_journal(tmp_path: Path, agent: str) -> None:
    write_manifest(tmp_path, {"run": "r"})
    writer = Writer(tmp_path, "n")
    for number in range(6):
        writer.append(encode_turn(*turn("xyz"[number % 3], number)))
        if number % 2:
            writer.rotate()
    writer.append(encode_turn(*turn("x", 9)))
    run, of_agent = Run(tmp_path), pc.field("agent_id") == agent
    few = run.table("turns", ["turn", "output_ids"], of_agent, few=True)
    assert few.sort_by("turn").equals(run.table("turns", ["turn", "output_ids"], of_agent).sort_by("turn"))
    assert few.num_rows == {"x": 3, "y": 2, "nobody": 0}[agent]
    assert run.table("turns", few=True).num_rows == 7
