"""What a real vLLM 0.32.0 told, recorded on the CPU, as readings; and what servers with several ranks tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from concur_batch.engine.protocol import Reading
from concur_batch.engine.vllm_metrics import VllmPool, make_vllm_pools

FIXTURES = Path(__file__).parents[1] / "fixtures" / "vllm"


def recorded(name: str) -> VllmPool:
    pools = make_vllm_pools((FIXTURES / name).read_text(), 5.0)
    assert list(pools) == [0]
    return pools[0]


def series(name: str, value: float, **labels: object) -> str:
    named = ",".join(f'{key}="{label}"' for key, label in labels.items())
    return f"vllm:{name}{{{named}}} {value}\n"


def config(tokens: object, block_tokens: object, **labels: object) -> str:
    """`tokens` is the size of one rank's pool, the null block included."""
    return series("cache_config_info", 1, block_size=block_tokens, kv_cache_size_tokens=tokens, **labels)


def only(metrics: str) -> Reading:
    return make_vllm_pools(metrics, 0.0)[0].reading


def test_a_server_that_has_served_nothing_tells_all_but_what_vllm_never_tells() -> None:
    pool = recorded("metrics_idle.txt")
    assert pool.block_tokens == 32
    assert pool.reading == Reading(
        at_seconds=5.0,
        pool_tokens=479 * 32,
        locked_tokens=0,
        running_requests=0,
        waiting_requests=0,
        input_tokens_total=0,
        device_hit_tokens_total=0,
        host_hit_tokens_total=0,
        storage_hit_tokens_total=0,
        computed_tokens_total=0,
        decoded_tokens_total=0,
        retractions_total=0,
    )


def test_a_generation_under_way() -> None:
    """1,500 prompt tokens and 39 of output lie in 49 blocks."""
    reading = recorded("metrics_generating.txt").reading
    assert (reading.locked_tokens, reading.running_requests, reading.waiting_requests) == (49 * 32, 1, 0)


def test_a_server_after_a_run() -> None:
    reading = recorded("metrics_after.txt").reading
    assert (reading.locked_tokens, reading.running_requests) == (0, 0)
    assert (reading.input_tokens_total, reading.device_hit_tokens_total) == (8798, 7872)
    assert (reading.computed_tokens_total, reading.decoded_tokens_total) == (8798, 730)


@given(blocks=st.integers(2, 10**6), block_tokens=st.sampled_from([16, 32, 128]), data=st.data())
def test_locked_tokens_are_whole_blocks(blocks: int, block_tokens: int, data: st.DataObject) -> None:
    held = data.draw(st.integers(0, blocks - 1))
    usage = 1.0 - (blocks - 1 - held) / (blocks - 1)  # as vLLM reckons it
    reading = only(
        config(blocks * block_tokens, block_tokens, engine=0) + series("kv_cache_usage_perc", usage, engine=0)
    )
    assert (reading.pool_tokens, reading.locked_tokens) == ((blocks - 1) * block_tokens, held * block_tokens)


@given(device=st.integers(0, 10**9), host=st.integers(0, 10**9), other=st.integers(0, 10**9), missed=st.integers(0, 10))
def test_every_token_looked_up_is_of_one_tier_or_missed(device: int, host: int, other: int, missed: int) -> None:
    reading = only(
        series("prefix_cache_queries_total", device + host + other + missed, engine=0)
        + series("prefix_cache_hits_total", device, engine=0)
        + series("external_prefix_cache_hits_total", host + other, engine=0)
        + series("prompt_tokens_cached_by_source_total", device, engine=0, source="device")
        + series("prompt_tokens_cached_by_source_total", host, engine=0, source="host")
        + series("prompt_tokens_cached_by_source_total", other, engine=0, source="disk")
    )
    tiers = (reading.device_hit_tokens_total, reading.host_hit_tokens_total, reading.storage_hit_tokens_total)
    assert (*tiers, reading.input_tokens_total) == (device, host, other, missed)


def test_every_rank_has_a_pool_of_its_own() -> None:
    metrics = "".join(
        config(110 + rank, 10, engine=rank) + series("num_requests_running", rank, engine=rank) for rank in (1, 0, 2)
    )
    pools = make_vllm_pools(metrics, 0.0)
    assert {rank: pool.reading.pool_tokens for rank, pool in pools.items()} == {0: 100, 1: 101, 2: 102}
    assert [pool.reading.running_requests for pool in pools.values()] == [0, 1, 2]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_number_of_blocks_is_of_all_ranks(ranks: int) -> None:
    """Older versions tell nothing else."""
    pools = make_vllm_pools(
        "".join(
            series("cache_config_info", 1, block_size=16, num_gpu_blocks=20 * ranks, engine=rank)
            for rank in range(ranks)
        ),
        0.0,
    )
    assert [pool.reading.pool_tokens for pool in pools.values()] == [19 * 16] * ranks


def test_a_server_with_one_rank_of_several_has_it_under_zero() -> None:
    assert only(series("num_requests_running", 4, engine=3)).running_requests == 4


@pytest.mark.parametrize("told", [("None", 16), ("160", "None"), ("0", 16)])
def test_of_a_pool_whose_size_is_not_told_the_locked_tokens_are_not_known(told: tuple[object, object]) -> None:
    reading = only(config(*told, engine=0) + series("kv_cache_usage_perc", 0.5, engine=0))
    assert (reading.pool_tokens, reading.locked_tokens) == (None, None)


def test_a_server_without_metrics_tells_nothing() -> None:
    assert make_vllm_pools("", 3.0) == {0: VllmPool(Reading(at_seconds=3.0), None)}


@pytest.mark.parametrize(
    "metrics",
    [
        series("num_requests_running", float("nan"), engine=0),
        series("num_requests_running", float("inf"), engine=0),
        series("num_requests_running", 1, engine="first"),
        "vllm:num_requests_running{ 1\n",
    ],
)
def test_what_is_not_as_vllms_is_refused(metrics: str) -> None:
    with pytest.raises((ValueError, ArithmeticError, KeyError)):
        make_vllm_pools(metrics, 0.0)
