"""The tables of `make bench-policies`, and the policies of others in them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.bench.policies.bench import cell, read_cells
from concur_batch.bench.policies.grid import CAPS, LAW_WINDOWS, RIVALS, Setting, settings
from concur_batch.bench.policies.loads import SHAPES, UNSEEN, make_load
from concur_batch.bench.policies.rivals import EpisodeCap, ProgramBudget
from concur_batch.bench.policies.table import Cells, gains, tables
from concur_batch.control.load import Load
from concur_batch.control.room import Room
from concur_batch.engine.signals import Sample

SETTING = Setting("Qwen3-32B TP8", "base", 0)


def cells(**seconds: float) -> Cells:
    """One setting in which every policy takes 100 s but those named."""
    told = {name.replace("_", " ") if name != "token_window" else name: each for name, each in seconds.items()}
    row = {"recomputed_share": 0.5, "pauses": 256, "most_paused_seconds": 10.0, "waiting_gini": 0.25}
    return {(name, SETTING): {**row, "seconds": told.get(name, 100.0)} for name in RIVALS}


def test_a_gain_is_how_much_sooner_the_batch_ends_and_the_best_cap_is_the_fastest() -> None:
    found = cells(none=200.0, token_window=50.0, cap_32=80.0, cap_8=400.0, concur_8=40.0, concur_128=160.0)
    assert gains(found, "token_window", [SETTING]) == [4.0]
    assert gains(found, "best cap", [SETTING]) == [2.5]
    assert gains(found, "law, best W", [SETTING]) == [5.0]
    assert gains(found, "law, worst W", [SETTING]) == [1.25]


def test_the_tables_say_of_everything_that_it_is_simulated() -> None:
    lines = tables(cells(none=200.0, token_window=50.0), [SETTING])
    heads = [line for line, below in pairwise(lines) if below.startswith("| ---")]
    assert len(heads) == 3 and all("simulated" in head for head in heads)
    assert any(line.startswith("| Qwen3-32B TP8, base | 200 | 4.00 | 2.00 |") for line in lines)
    assert any(line.startswith("| geometric mean | 2.00 |") for line in lines)


def test_cells_are_read_back_but_for_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    row = {"policy": "none", "setting": ["Qwen3-32B TP8", "base", 0], "seconds": 1.0}
    path.write_bytes(b"\n" + orjson.dumps(row) + b"\n" + orjson.dumps(row)[:20])
    assert read_cells(path) == {("none", SETTING): row}
    assert read_cells(tmp_path / "none.jsonl") == {}


def test_the_grid_is_that_of_the_page() -> None:
    assert len(settings(3)) == 84 and len(settings(3, unseen=True)) == 60
    assert {f"cap {cap}" for cap in CAPS} | {f"concur {window}" for window in LAW_WINDOWS} < set(RIVALS)


@pytest.mark.parametrize("name", [*SHAPES, *UNSEEN])
def test_a_load_is_drawn_by_its_seed_within_its_shape(name: str) -> None:
    shape = (SHAPES if name in SHAPES else UNSEEN)[name]
    load, again, other = make_load(shape, 1), make_load(shape, 1), make_load(shape, 2)
    assert load == again != other
    assert (len(load.plans), load.shared_tokens) == (shape.agents, shape.shared_tokens)
    if not shape.heavy:
        assert all(shape.turns[0] <= len(plan.turns) <= shape.turns[1] for plan in load.plans)


def test_a_cell_is_a_simulated_batch_that_does_all_its_work() -> None:
    few = Setting("Qwen3-32B TP8", "few agents", 0)
    free, held = cell("none", few), cell("cap 8", few)
    assert free["work"] == held["work"]
    assert held["seconds"] > free["seconds"] > 0
    assert held["waiting_gini"] > free["waiting_gini"] == 0


@given(usage=st.floats(0, 1), capacity=st.integers(1, 500), waiting=st.integers(0, 5))
def test_the_episode_cap_cuts_above_eighty_percent_and_grows_a_quarter_below_sixty(
    usage: float, capacity: int, waiting: int
) -> None:
    policy = EpisodeCap()
    policy.start(0, 1000)
    for _ in range(10):
        verdict = policy.step(capacity, Sample(stale=False, usage=0.7), Load(0.0))
        assert verdict.after == capacity
    after = policy.step(capacity, Sample(stale=False, usage=usage), Load(0.0, waiting=waiting)).after
    assert after is not None and after >= 1
    if usage > 0.8:
        assert after < capacity or capacity == 1
    elif usage < 0.6 and waiting:
        assert capacity < after <= capacity * 1.25 + 1
    else:
        assert after == capacity


def test_the_program_budget_is_the_whole_pool_and_looks_no_turn_ahead() -> None:
    policy = ProgramBudget()
    assert policy.start(0, 1000).room == Room(1000, 1000)
    assert policy.step(None, Sample(stale=False), Load(0.0, pool_tokens=900)).room == Room(900, 900)
