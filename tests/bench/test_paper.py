"""The pure parts of `concur bench paper`: errors, decomposition, aims, cells, loads."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.bench.paper import published
from concur_batch.bench.paper.aims import aims_of
from concur_batch.bench.paper.calibration import FITTED
from concur_batch.bench.paper.cells import DEEPSEEK_ROWS, PARTS, QWEN_ROWS, ROWS, SYSTEMS, TABLES, Cell, cells_of
from concur_batch.bench.paper.outcome import Outcome, decomposition
from concur_batch.bench.paper.results import Results, log_error
from concur_batch.bench.paper.simulation import read_row, row_load
from concur_batch.bench.paper.tables import sheets_of
from concur_batch.bench.paper.transfer import Growth, contexts, restoring
from concur_batch.bench.plan import Plan, Turn
from concur_batch.bench.plans import Load
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.cost import CostModel

ABOVE_0 = st.floats(1e-3, 1e6)


def outcome(
    row: str, system: str, seconds: float, *, seed: int = 0, hit: float = 0.5, turns: int = 4, **figures: float
) -> Outcome:
    """An outcome of one agent with 1,000 tokens looked up, `hit` of them on the device."""
    work = {"task_id": "a", "sample": 0, "final": True, "status": "finished", "turns": turns}
    work |= {"input_tokens": 1000, "output_tokens": 100, "tool_calls": turns - 1}
    values: dict[str, float] = dict.fromkeys(
        ("computed_tokens", "prefill_seconds", "decode_seconds", "tool_seconds", "engine_seconds"), 1
    )
    values |= dict.fromkeys(("recomputed_tokens", "evicted_tokens", "retractions", "increases", "cuts"), 0)
    values |= {"waiting_seconds": 0, "looked_up_tokens": 1000, "device_hit_tokens": int(1000 * hit)}
    values |= {"host_hit_tokens": 0} | figures
    return Outcome(cell=Cell(row, system, seed), seconds=seconds, work=[work], series=[], **values)  # type: ignore[arg-type]


def met(results: Results) -> Mapping[str, bool | None]:
    return {aim.name: aim.met for aim in aims_of(results)}


@given(ABOVE_0, ABOVE_0)
def test_an_error_is_symmetric(simulated: float, paper: float) -> None:
    there, back = log_error(simulated, paper), log_error(paper, simulated)
    assert there is not None and back is not None
    assert there == pytest.approx(-back, abs=1e-9)
    assert math.exp(there) * paper == pytest.approx(simulated)


def test_there_is_no_error_without_a_figure_of_the_paper() -> None:
    assert log_error(1.0, None) is None


@given(
    tool=st.floats(0, 1e5), engine=ABOVE_0, prefill=ABOVE_0, decode=ABOVE_0,
    computed=st.integers(1, 10**8), share=st.floats(0, 1),
)  # fmt: skip
def test_a_decomposition_sums_to_one(
    tool: float, engine: float, prefill: float, decode: float, computed: int, share: float
) -> None:
    figures = {"tool_seconds": tool, "engine_seconds": engine, "prefill_seconds": prefill, "decode_seconds": decode}
    figures |= {"computed_tokens": computed, "recomputed_tokens": int(computed * share)}
    parts = decomposition(outcome("deepseek-v3-40", "none", 1, **figures))
    assert sum(parts.values()) == pytest.approx(1)
    assert all(0 <= part <= 1 + 1e-9 for part in parts.values())
    assert parts.keys() == published.DECOMPOSITION.keys()


def test_a_decomposition_worked_out() -> None:
    # 100 s of tools, 300 s in an engine that prefilled for 40 s, three quarters of it again, and decoded for 20 s.
    figures = {"tool_seconds": 100, "engine_seconds": 300, "prefill_seconds": 40, "decode_seconds": 20}
    parts = decomposition(outcome("r", "none", 1, **figures, computed_tokens=400, recomputed_tokens=300))
    assert parts == pytest.approx({"tool": 0.25, "decode": 0.25, "first prefill": 0.125, "recomputation": 0.375})


def test_the_papers_shares_sum_to_one_and_its_cells_are_21_with_at_most_14_fitted() -> None:
    assert sum(published.DECOMPOSITION.values()) == pytest.approx(1)
    known = {(row, system) for row, systems in published.TABLE_1.items() for system in systems}
    assert len(known) == 21
    assert known >= FITTED
    assert len(FITTED) <= 14
    assert not {system for _, system in FITTED} & {"concur", "request_cap"}


def test_every_figure_of_the_paper_has_a_cell_that_shows_it() -> None:
    for table in TABLES.values():
        assert set(table.paper) <= set(table.rows) <= set(ROWS)
        for figures in table.paper.values():
            assert set(figures) <= set(table.systems) <= set(SYSTEMS)


def test_cells_are_simulated_once_whatever_tables_share_them() -> None:
    cells = cells_of(list(PARTS), ROWS, seeds=2)
    assert len(set(cells)) == len(cells)
    # Four systems in six rows, four windows in one, six other thresholds in three.
    assert len(cells) == 2 * (6 * 4 + 4 + 3 * 6)
    assert {cell.row for cell in cells_of(["table2"], ["deepseek-v3-16"], seeds=1)} == {"deepseek-v3-16"}


def test_the_rows_of_a_model_have_one_load() -> None:
    for rows in (QWEN_ROWS, DEEPSEEK_ROWS):
        sections = [read_row(row)[0] for row in rows]
        assert len({section.model_copy(update={"agents": 1}).model_dump_json() for section in sections}) == 1
    assert [read_row(row)[0].agents for row in ROWS] == [256, 256, 256, 16, 32, 40]


def test_more_agents_leave_those_before_as_they_are_and_a_seed_changes_them() -> None:
    small, large = (read_row(row)[0] for row in ("deepseek-v3-16", "deepseek-v3-40"))
    assert row_load(large, 1).plans[:16] == row_load(small, 1).plans
    assert row_load(small, 1).plans[0] != row_load(small, 2).plans[0]


def test_hicache_has_as_much_host_memory_in_every_row_of_a_model() -> None:
    for rows in (QWEN_ROWS, DEEPSEEK_ROWS):
        tiers = [next(iter(read_row(row, hicache=True)[1].engines.values())).hicache for row in rows]
        assert len({tier.host_tokens for tier in tiers if tier is not None}) == 1
        assert None not in tiers


def four(seconds: Mapping[str, float], hits: Mapping[str, float]) -> list[Outcome]:
    return [outcome(row, system, seconds[system], hit=hits[system]) for row in ROWS for system in seconds]


FASTEST = "CONCUR is the fastest of the four in all six rows"
GOOD = {"none": 300.0, "request_cap": 310.0, "hicache": 200.0, "concur": 100.0}
HITS = {"none": 0.3, "request_cap": 0.3, "hicache": 0.97, "concur": 0.8}


def test_aims_are_met() -> None:
    found = met(Results(four(GOOD, HITS)))
    assert found[FASTEST] is True
    assert found["the request cap does not raise the hit rate"] is True
    assert found["HiCache has the highest hit rate of all tiers"] is True
    assert found["and yet HiCache is slower than CONCUR"] is True
    assert found["no control hits under 45 % at 40 DeepSeek agents"] is True
    assert found["u_high 0.8 is clearly worse than the default at TP8, TP4 and TP2"] is None


@pytest.mark.parametrize(("seconds", "hits", "missed"), [
    ({"hicache": 90.0}, {}, {FASTEST, "and yet HiCache is slower than CONCUR"}),
    ({}, {"request_cap": 0.4}, {"the request cap does not raise the hit rate"}),
    ({}, {"concur": 0.98}, {"HiCache has the highest hit rate of all tiers"}),
    ({}, {"none": 0.45, "request_cap": 0.45}, {"no control hits under 45 % at 40 DeepSeek agents"}),
])  # fmt: skip
def test_an_aim_is_missed(seconds: dict[str, float], hits: dict[str, float], missed: set[str]) -> None:
    before, after = met(Results(four(GOOD, HITS))), met(Results(four(GOOD | seconds, HITS | hits)))
    assert {name for name, good in after.items() if good is False and before[name]} == missed


def test_aims_of_thresholds_and_windows() -> None:
    outcomes = [outcome(row, "concur", 100) for row in QWEN_ROWS]
    outcomes += [outcome(row, system, 105) for row in QWEN_ROWS for system in ("u_high 0.4", "u_high 0.8")]
    outcomes += [outcome("qwen3-32b-tp2", f"window {cap}", seconds) for cap, seconds in
                 ((30, 120), (32, 101), (64, 150), (128, 300))]  # fmt: skip
    found = met(Results(outcomes))
    assert found["u_high 0.8 is clearly worse than the default at TP8, TP4 and TP2"] is False
    assert found["u_high 0.4 is worse than the default at TP8, TP4 and TP2"] is True
    assert found["the best fixed window is slower than the adaptive one"] is True


def test_a_figure_is_the_median_with_its_spread() -> None:
    row = "qwen3-32b-tp2"
    results = Results([outcome(row, "concur", seconds, seed=seed) for seed, seconds in enumerate((9, 3, 4))])
    figure = results.figure(row, "concur", lambda found: found.seconds, 8.0)
    assert figure is not None
    assert (figure.median, figure.least, figure.most) == (4, 3, 9)
    assert figure.log_error == pytest.approx(math.log(0.5))


def test_a_ratio_is_of_equal_seeds_and_refused_where_the_work_differs() -> None:
    row = "deepseek-v3-16"
    same = Results([outcome(row, "none", 300, seed=1), outcome(row, "none", 90), outcome(row, "concur", 100, seed=1)])
    assert same.ratio(row, "none") == 3
    assert not same.all_work_differences()
    other = Results([outcome(row, "none", 300, turns=3), outcome(row, "concur", 100)])
    assert other.ratio(row, "none") is None
    assert [line for line in other.all_work_differences() if "other turns" in line]
    sheet = next(sheet for sheet in sheets_of(other, Growth([1.0] * 10, 1, []), ["table1"], [row]))
    assert sheet.rows[0][-1] == "refused, –, –"


def test_rows_say_which_figures_are_the_papers() -> None:
    found = list(Results([outcome("deepseek-v3-16", "none", 800, hit=0.6)]).rows())
    assert [(row["table"], row["paper_seconds"], row["paper_hit_rate"]) for row in found] == [
        ("table1", 873, None),
        ("table2", None, 0.8038),
    ]
    assert found[1]["log_error"] == pytest.approx(math.log(0.6 / 0.8038))


def test_contexts_are_means_over_those_who_get_so_far() -> None:
    plans = (Plan("a", (Turn(100, 10), Turn(50, 10))), Plan("b", (Turn(200, 10),)))
    assert contexts(Load(plans, shared_tokens=1000)) == [1150, 1160]


def test_restoring_in_chunks_and_over_the_link() -> None:
    cost = CostModel(prefill_seconds_per_token=1e-4, prefill_seconds_per_token_pair=0, load_seconds_per_token=1e-5,
                     prefill_step_seconds=0.5)  # fmt: skip
    found = restoring(cost, EngineConfig(pool_tokens=100_000, chunked_prefill_tokens=8192))
    assert [each.requests for each in found] == list(range(1, 9))
    # Two requests of 4,096 tokens fill a chunk, so three take two steps.
    assert found[2].recompute_seconds == pytest.approx(3 * 0.4096 + 2 * 0.5)
    assert found[2].transfer_seconds == pytest.approx(3 * 0.04096)
