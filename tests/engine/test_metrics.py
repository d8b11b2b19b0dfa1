"""What a real SGLang 0.5.23 told, recorded on the CPU, as readings."""

import json
from pathlib import Path
from typing import Any

from concur_batch.engine.metrics import make_reading, parse_metrics

FIXTURES = Path(__file__).parents[1] / "fixtures" / "sglang"


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


def loads(name: str) -> dict[str, Any]:
    return dict(json.loads(text(name)))


def test_an_idle_server_after_a_run() -> None:
    reading = make_reading(text("metrics.txt"), loads("loads.json"), 5.0)
    assert (reading.pool_tokens, reading.locked_tokens, reading.evictable_tokens) == (3072, 0, 3056)
    assert (reading.input_tokens_total, reading.device_hit_tokens_total) == (9214, 84971)
    assert (reading.host_hit_tokens_total, reading.evicted_tokens_total, reading.retractions_total) == (0, 6964, 0)
    assert (reading.computed_tokens_total, reading.decoded_tokens_total) == (9214, 2652)
    assert reading.stamp_seconds == loads("loads.json")["loads"][0]["timestamp"]
    assert reading.at_seconds == 5.0


def test_a_busy_server() -> None:
    reading = make_reading(text("metrics_busy.txt"), loads("loads_busy.json"), 0.0)
    assert reading.evictable_tokens == 1335
    assert reading.locked_tokens == loads("loads_busy.json")["loads"][0]["num_used_tokens"]
    assert reading.running_requests is not None
    assert reading.running_requests > 0


def test_metrics_alone_will_do() -> None:
    reading = make_reading(text("metrics_busy.txt"), None, 0.0)
    assert (reading.locked_tokens, reading.stamp_seconds) == (1733, None)


def test_other_tensor_ranks_repeat_and_data_ranks_add() -> None:
    lines = [
        'sglang:evicted_tokens_total{tp_rank="0",dp_rank="0"} 5.0',
        'sglang:evicted_tokens_total{tp_rank="1",dp_rank="0"} 5.0',
        'sglang:evicted_tokens_total{tp_rank="0",dp_rank="1"} 7.0',
    ]
    assert parse_metrics("\n".join(lines))["evicted_tokens_total"] == 12


def test_counters_that_have_not_moved_are_absent_and_zero() -> None:
    assert parse_metrics("sglang:max_total_num_tokens 10.0\n")["evicted_tokens_total"] == 0
    assert parse_metrics("") == {}  # an engine that tells nothing has not told zero
