"""The table of `make bench-real`, of cells on disk and runs that did or did not do the same work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from concur_batch.bench import real_cells
from concur_batch.bench.real_cells import SYSTEMS, Cell, System, digest_of, store, stored
from concur_batch.bench.real_table import table

TURNS = {"same": 3, "other": 4}


class FakeRun:
    """A run whose one agent took as many turns as its directory's name says."""

    def __init__(self, path: str) -> None:
        self.turns = TURNS[Path(path).name]

    def agents_final(self) -> pa.Table:
        row = {"task_id": "t", "sample": 0, "final": True, "status": "finished", "turns": self.turns}
        return pa.Table.from_pylist([row | {"input_tokens": 9, "output_tokens": 2, "tool_calls": 1}])


@pytest.fixture(autouse=True)
def _results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_cells, "RESULTS", tmp_path)
    monkeypatch.setattr("concur_batch.bench.real_table.Run", FakeRun)


def keep(name: str, repetition: int, seconds: float, **changes: Any) -> System:
    [system] = [system for system in SYSTEMS["sglang"] if system.name == name]
    fields: dict[str, Any] = {
        "run_dir": "same", "device_hit_rate": 0.5, "host_hit_rate": 0.0, "input_tokens": 900, "computed_tokens": 400,
        "recomputed_tokens": 100, "evicted_tokens": 1000, "retractions": 0, "window_mean": None, "increases": 0,
        "cuts": 0, "windows": [], **changes,
    }  # fmt: skip
    store(Cell("sglang", name, repetition, digest_of("sglang", system), seconds=seconds, **fields), system)
    return system


def rows() -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in table("sglang") if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines[1:]}


def test_a_cell_counts_until_what_it_ran_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    system = keep("none", 1, 60.0)
    cell = stored("sglang", system, 1)
    assert cell is not None and cell.seconds == 60.0
    assert stored("sglang", system, 0) is None
    other = System(system.name, {**system.control, "period_seconds": 2})
    assert stored("sglang", other, 1) is None


def test_nothing_measured_is_no_table() -> None:
    assert list(table("sglang")) == []


def test_a_row_is_the_median_of_its_repetitions_and_the_caps_are_ranked() -> None:
    for repetition, seconds in enumerate((90.0, 60.0, 70.0)):
        keep("none", repetition, seconds, recomputed_tokens=100 * (repetition + 1))
    keep("agent_cap 3", 0, 50.0, window_mean=3.0)
    keep("agent_cap 5", 0, 40.0, window_mean=5.0, recomputed_tokens=0)
    found = rows()
    assert list(found) == ["none", "agent_cap 3 (worst)", "agent_cap 5 (best)"]
    assert found["none"] == ["70 (60 to 90)", "0.50", "0.00", "200", "50%", "1,000", "0", "–", "0, 0", "yes"]
    assert found["agent_cap 5 (best)"][7] == "5.0"


def test_a_run_that_did_other_work_is_marked() -> None:
    keep("none", 0, 60.0)
    keep("concur", 0, 30.0, run_dir="other", windows=[4, 8, 16, 2], window_mean=7.5, increases=2, cuts=1)
    assert rows()["concur"][-1] == "NO"
    assert "    concur             30 s  W 2 to 16    ▃▅█▂" in list(table("sglang"))
