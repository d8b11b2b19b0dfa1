"""What a real SGLang 0.5.23 told, recorded on the CPU, as readings; and what servers with several ranks tell."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.engine.metrics import make_readings
from concur_batch.engine.protocol import Reading

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sglang"


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


def loads(name: str) -> dict[str, Any]:
    return dict(json.loads(text(name)))


def only(metrics: str | None, told: dict[str, Any] | None = None, at_seconds: float = 0.0) -> Reading:
    readings = make_readings(metrics, told, at_seconds)
    assert list(readings) == [0]
    return readings[0]


def series(name: str, value: float, **labels: object) -> str:
    named = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"sglang:{name}{{{named}}} {value}\n"


def entry(rank: int, used: int) -> dict[str, Any]:
    return {
        "dp_rank": rank, "timestamp": 7.0 + rank, "max_total_num_tokens": 100, "num_used_tokens": used,
        "num_running_reqs": 1, "num_waiting_reqs": 2,
    }  # fmt: skip


def test_an_idle_server_after_a_run() -> None:
    reading = only(text("metrics.txt"), loads("loads.json"), 5.0)
    assert (reading.pool_tokens, reading.locked_tokens, reading.evictable_tokens) == (3072, 0, 3056)
    assert (reading.input_tokens_total, reading.device_hit_tokens_total) == (9214, 84971)
    assert (reading.host_hit_tokens_total, reading.evicted_tokens_total, reading.retractions_total) == (0, 6964, 0)
    assert (reading.computed_tokens_total, reading.decoded_tokens_total) == (9214, 2652)
    assert reading.stamp_seconds == loads("loads.json")["loads"][0]["timestamp"]
    assert reading.at_seconds == 5.0


def test_a_busy_server() -> None:
    reading = only(text("metrics_busy.txt"), loads("loads_busy.json"))
    assert reading.evictable_tokens == 1335
    assert reading.locked_tokens == loads("loads_busy.json")["loads"][0]["num_used_tokens"]
    assert reading.running_requests == 17


def test_metrics_alone_will_do() -> None:
    reading = only(text("metrics_busy.txt"))
    assert (reading.locked_tokens, reading.stamp_seconds) == (1733, None)


def test_loads_alone_will_do() -> None:
    readings = make_readings(None, {"loads": [entry(0, 5), entry(1, 6)]}, 1.0)
    assert {rank: reading.locked_tokens for rank, reading in readings.items()} == {0: 5, 1: 6}
    assert [reading.stamp_seconds for reading in readings.values()] == [7.0, 8.0]
    assert readings[0].evicted_tokens_total is None  # that nothing was evicted nobody has said


def test_loads_without_a_stamp_are_read() -> None:
    bare = entry(0, 5)
    del bare["timestamp"]
    assert only(None, {"loads": [bare]}).stamp_seconds is None


def test_an_engine_that_tells_nothing_is_read_as_nothing() -> None:
    assert only(None, None, 3.0) == Reading(at_seconds=3.0)
    assert only("", {"loads": []}, 3.0) == Reading(at_seconds=3.0)


@given(
    counts=st.dictionaries(st.integers(0, 3), st.integers(0, 10**9), min_size=2),
    width=st.integers(1, 4),
    more=st.sampled_from(["cache", "scheduler"]),
)
def test_tensor_ranks_repeat_and_every_data_rank_has_its_own(counts: dict[int, int], width: int, more: str) -> None:
    """Under DP attention every tp rank may report, and the tp ranks of a dp rank's scheduler do not start at 0."""
    name = {"cache": "evicted_tokens_total", "scheduler": "num_retracted_requests_total"}[more]
    metrics = ""
    for rank, value in counts.items():
        for tensor in reversed(range(width)):
            of_scheduler = rank * width + tensor
            metrics += series("max_total_num_tokens", 100 + rank, tp_rank=of_scheduler, dp_rank=rank)
            told = tensor if more == "cache" else of_scheduler
            metrics += series(name, value, pp_rank=0, tp_rank=told, dp_rank=rank)
    readings = make_readings(metrics, None, 0.0)
    field = {"cache": "evicted_tokens_total", "scheduler": "retractions_total"}[more]
    assert {rank: getattr(reading, field) for rank, reading in readings.items()} == counts
    assert {rank: reading.pool_tokens for rank, reading in readings.items()} == {rank: 100 + rank for rank in counts}


def test_the_least_tensor_and_pipeline_rank_speaks() -> None:
    metrics = (
        series("kv_used_tokens", 7, tp_rank=1, pp_rank=0)
        + series("kv_used_tokens", 8, tp_rank=0, pp_rank=1)
        + series("kv_used_tokens", 9, tp_rank=0, pp_rank=0)
    )
    assert only(metrics).locked_tokens == 9


def test_what_names_no_rank_is_nobodys_among_several() -> None:
    metrics = series("kv_used_tokens", 50) + series("kv_evictable_tokens", 9, dp_rank=1)
    readings = make_readings(metrics, {"loads": [entry(0, 5), entry(1, 6)]}, 0.0)
    assert (readings[0].locked_tokens, readings[0].evictable_tokens) == (5, None)
    assert (readings[1].locked_tokens, readings[1].evictable_tokens) == (6, 9)


def test_a_single_rank_is_named_by_its_cache_alone() -> None:
    metrics = series("kv_used_tokens", 50, tp_rank=0) + series("evicted_tokens_total", 3, tp_rank=0, dp_rank=0)
    reading = only(metrics)
    assert (reading.locked_tokens, reading.evicted_tokens_total) == (50, 3)


def test_plain_data_parallelism_adds_up_its_caches_under_rank_zero() -> None:
    """So that what they evicted is not known by rank, though all else is."""
    ranks = "".join(series("num_retracted_requests_total", 4 + rank, tp_rank=0, dp_rank=rank) for rank in (0, 1))
    readings = make_readings(ranks + series("evicted_tokens_total", 30, tp_rank=0, dp_rank=0), None, 0.0)
    assert [reading.evicted_tokens_total for reading in readings.values()] == [None, None]
    assert [reading.retractions_total for reading in readings.values()] == [4, 5]


def test_under_dp_attention_a_rank_whose_cache_says_nothing_has_evicted_nothing() -> None:
    ranks = "".join(series("num_retracted_requests_total", 0, tp_rank=rank, dp_rank=rank) for rank in (0, 1))
    readings = make_readings(ranks + series("evicted_tokens_total", 30, tp_rank=0, dp_rank=0), None, 0.0)
    assert [reading.evicted_tokens_total for reading in readings.values()] == [30, 0]


def test_counters_that_have_not_moved_are_absent_and_zero() -> None:
    reading = only(series("max_total_num_tokens", 10))
    assert (reading.evicted_tokens_total, reading.retractions_total, reading.reloaded_tokens_total) == (0, 0, 0)
    assert reading.reload_seconds_total == 0.0
    assert reading.input_tokens_total is None  # shown from the start: absent, it is not told


def test_what_the_host_tier_moved() -> None:
    """Tokens are told apart by pool and repeated by every tp rank; bytes are of each rank's own shard."""
    metrics = series("max_total_num_tokens", 10, tp_rank=0)
    for tensor in (0, 1):
        of = {"tp_rank": tensor, "pp_rank": 0, "dp_rank": 0}
        metrics += "".join(
            series("load_back_tokens_total", value, **of, pool=pool) for pool, value in (("kv", 40), ("swa", 2))
        )
        metrics += series("hicache_backup_tokens_total", 60, **of, pool="kv")
        metrics += series("load_back_bytes_total", 1000 + tensor, **of)
        metrics += series("hicache_backup_bytes_total", 2000, **of)
        metrics += series("load_back_duration_seconds_bucket", 9, **of, le="0.1")
        metrics += series("load_back_duration_seconds_sum", 0.25 + tensor, **of)
        metrics += series("load_back_duration_seconds_count", 9, **of)
    reading = only(metrics)
    assert (reading.reloaded_tokens_total, reading.offloaded_tokens_total) == (42, 60)
    assert (reading.reloaded_bytes_total, reading.offloaded_bytes_total) == (2001, 4000)
    assert reading.reload_seconds_total == 0.25


def test_with_priorities_the_total_has_the_empty_one() -> None:
    metrics = "".join(series("num_running_reqs", value, priority=name) for name, value in (("", 5), ("1", 2), ("2", 3)))
    assert only(metrics).running_requests == 5


@pytest.mark.parametrize(
    ("metrics", "told"),
    [("sglang:kv_used_tokens NaN\n", None), ("", {"loads": [{"dp_rank": 0}]}), ("", {"loads": [None]})],
)
def test_what_is_not_as_sglangs_is_refused(metrics: str, told: dict[str, Any] | None) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        make_readings(metrics, told, 0.0)
