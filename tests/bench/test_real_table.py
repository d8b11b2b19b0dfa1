"""The table of `make bench-real`, of cells on disk and runs that did or did not do the same work."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from concur_batch.bench import real_cells
from concur_batch.bench.real_cells import Cell, digest_of, store, stored, workload_of
from concur_batch.bench.real_loads import GRID, LOADS, RealLoad, System
from concur_batch.bench.real_table import means, table
from concur_batch.workload.loading import load as read_workload
from concur_batch.workload.schema import AgentCap, LaunchedEngine

TURNS = {"same": 3, "other": 4}
[FIRST] = [load for load in LOADS if load.engine == "sglang" and not load.name]
SHORT, OTHER = [load for load in GRID if load.engine == "sglang"][:2]


class FakeRun:
    """A run whose one agent took as many turns as its directory's name says, and was paused before two of them."""

    def __init__(self, path: str) -> None:
        self.turns = TURNS[Path(path).name]

    def agents_final(self) -> pa.Table:
        row = {"task_id": "t", "sample": 0, "final": True, "status": "finished", "turns": self.turns}
        return pa.Table.from_pylist([row | {"input_tokens": 9, "output_tokens": 2, "tool_calls": 1}])

    def table(self, name: str, columns: list[str]) -> pa.Table:
        assert (name, columns) == ("turns", ["paused_seconds"])
        return pa.table({"paused_seconds": [0.0, 2.0, float(self.turns)]})


@pytest.fixture(autouse=True)
def _results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_cells, "RESULTS", tmp_path)
    monkeypatch.setattr("concur_batch.bench.real_table.Run", FakeRun)


def keep(name: str, repetition: int, seconds: float, load: RealLoad = FIRST, **changes: Any) -> System:
    [system] = [system for system in load.systems if system.name == name]
    fields: dict[str, Any] = {
        "run_dir": "same", "device_hit_rate": 0.5, "host_hit_rate": 0.0, "input_tokens": 900, "computed_tokens": 400,
        "recomputed_tokens": 100, "evicted_tokens": 1000, "retractions": 0, "window_mean": None, "increases": 0,
        "cuts": 0, "windows": [], "load": load.name, **changes,
    }  # fmt: skip
    cell = Cell(load.engine, name, repetition, digest_of(load, system), seconds=seconds, **fields)
    store(cell, load, system)
    return system


def rows(load: RealLoad = FIRST) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in table(load) if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines[1:]}


def test_a_cell_counts_until_what_it_ran_changes() -> None:
    system = keep("none", 1, 60.0)
    cell = stored(FIRST, system, 1)
    assert cell is not None and cell.seconds == 60.0
    assert stored(FIRST, system, 0) is None
    other = System(system.name, {**system.control, "period_seconds": 2})
    assert stored(FIRST, other, 1) is None
    other_settings = replace(FIRST, settings=("replay.synthetic.turns=[4, 4]",))
    assert stored(other_settings, system, 1) is None


def test_loads_keep_their_cells_apart() -> None:
    for seconds, load in enumerate(LOADS):
        keep("none", 0, float(seconds), load)
    for seconds, load in enumerate(LOADS):
        cell = stored(load, load.systems[0], 0)
        assert cell is not None and (cell.seconds, cell.load, cell.engine) == (seconds, load.name, load.engine)


def test_every_load_is_a_workload_that_its_settings_fit() -> None:
    told = []
    for load in LOADS:
        for system in load.systems:
            control = f"control={system.control!r}".replace("'", '"')
            workload = read_workload(workload_of(load), [*load.settings, control]).workload
            assert isinstance(workload.engine, LaunchedEngine) and workload.engine.kind == load.engine
            if isinstance(workload.control, AgentCap):
                assert system.name == f"agent_cap {workload.control.cap}"
        assert workload.replay is not None and workload.replay.synthetic is not None
        told.append((load.engine, workload.replay.synthetic.tool_seconds, workload.replay.synthetic.shared_tokens))
    waits = [(0.2, 2.0), (2.0, 8.0)]
    assert told[: len(GRID)] == list(itertools.product(("sglang", "vllm"), waits, (200, 1000)))


def test_nothing_measured_is_no_table() -> None:
    assert list(table(FIRST)) == []
    assert list(means(GRID)) == []


def test_a_row_is_the_median_of_its_repetitions_and_the_caps_are_ranked() -> None:
    for repetition, seconds in enumerate((90.0, 60.0, 70.0)):
        keep("none", repetition, seconds, recomputed_tokens=100 * (repetition + 1))
    keep("agent_cap 3", 0, 50.0, window_mean=3.0)
    keep("agent_cap 5", 0, 40.0, window_mean=5.0, recomputed_tokens=0)
    found = rows()
    assert list(found) == ["none", "agent_cap 3 (worst)", "agent_cap 5 (best)"]
    figures = ["70 (60 to 90)", "0.50", "0.00", "200", "50%", "1,000", "0", "2", "3", "–", "0, 0", "yes", "1.75"]
    assert found["none"] == figures
    assert found["agent_cap 5 (best)"][9] == "5.0"
    assert [row[-1] for row in found.values()] == ["1.75", "1.25", "1.00"]


def test_without_a_cap_nothing_is_said_against_it() -> None:
    keep("none", 0, 60.0, SHORT)
    assert rows(SHORT)["none"][-1] == "–"
    assert list(means([SHORT])) == []


def test_the_means_are_over_the_loads_where_a_cap_was_measured() -> None:
    for load, cap_seconds, window_seconds in ((SHORT, 40.0, 30.0), (OTHER, 50.0, 60.0)):
        keep("token_window", 0, window_seconds, load)
        caps = [system.name for system in load.systems if system.name.startswith("agent_cap")]
        keep(caps[0], 0, cap_seconds, load)
        keep(caps[1], 0, cap_seconds + 10, load)
    keep("none", 0, 80.0, SHORT)
    [line] = means(GRID)
    told = "none 2.00 (1 of 4 loads), token_window 0.95 (2 of 4 loads)"
    assert line == f"sglang, seconds over the best cap's, geometric means: {told}"


def test_a_run_that_did_other_work_is_marked() -> None:
    keep("none", 0, 60.0)
    keep("concur", 0, 30.0, run_dir="other", windows=[4, 8, 16, 2], window_mean=7.5, increases=2, cuts=1)
    assert rows()["concur"][-2] == "NO"
    assert "    concur             30 s  W 2 to 16    ▃▅█▂" in list(table(FIRST))
