"""Random loads on small engines: what tests of the whole engine run."""

import random

import numpy as np

from concur_batch.simulator.config import EngineConfig, HiCacheConfig
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.engine import EngineCore
from concur_batch.simulator.request import Completion, Request

COST = CostModel(
    prefill_seconds_per_token=0.01,
    prefill_seconds_per_token_pair=0.0001,
    decode_step_seconds=0.1,
    decode_seconds_per_request=0.01,
    decode_seconds_per_kv_token=0.001,
    load_seconds_per_token=0.004,
    store_seconds_per_token=0.006,
)
INFINITY = float("inf")


def make_request(rid: str, prompt: list[int], output: int, allowance: int, ignore_eos: bool = False) -> Request:
    said = np.arange(1000, 1000 + (allowance if ignore_eos else output), dtype=np.int32)
    return Request(rid, np.array(prompt, dtype=np.int32), said, allowance, ignore_eos)


def make_load(seed: int) -> tuple[EngineConfig, list[tuple[float, Request]]]:
    """A small engine and requests that it can take, many of which share prefixes; every third load is a tight one."""
    rng = random.Random(seed)
    tight = seed % 3 == 0  # long outputs of which the engine expects little: it has to retract
    config = EngineConfig(
        pool_tokens=rng.randint(60, 120 if tight else 200),
        page_size=rng.choice([1, 1, 4]),
        context_tokens=1000,
        chunked_prefill_tokens=rng.choice([8, 16, 64]),
        max_running_requests=12 if tight else rng.randint(1, 8),
        conservativeness=0.05 if tight else 1.0,
        refresh_passes=rng.choice([0, 1, 32]),
    )
    longest = 40 if tight else rng.choice([5, 30])
    arrivals = []
    now = 0.0
    for index in range(rng.randint(1, 14)):
        now += rng.choice([0.0, 0.0, 0.0, 0.3, 5.0])
        prompt = list(range(1, 1 + rng.choice([0, 5, 20]))) + [100 + index] * rng.randint(1, 10)
        output = rng.randint(longest // 2, longest) if tight else rng.randint(1, longest)
        allowance = output + rng.choice([0, 1, 3])
        if rng.random() < 0.2:
            allowance = max(1, output - 3)
        arrivals.append((now, make_request(f"r{index:02d}", prompt, output, allowance, rng.random() < 0.2)))
    return config, arrivals


def make_tiered_load(seed: int) -> tuple[EngineConfig, list[tuple[float, Request]]]:
    """A small engine with a host tier, of any policies, and conversations whose later turns come back."""
    rng = random.Random(f"tiers {seed}")
    page_size = rng.choice([1, 1, 4])
    config = EngineConfig(
        pool_tokens=rng.randint(80, 160),
        page_size=page_size,
        context_tokens=1000,
        chunked_prefill_tokens=rng.choice([8, 16, 64]),
        max_prefill_tokens=rng.choice([16, 64]),
        max_running_requests=rng.randint(1, 8),
        conservativeness=rng.choice([0.05, 0.05, 1.0]),
        refresh_passes=rng.choice([0, 1, 32]),
        eviction=rng.choice(["lru", "lfu", "slru", "priority"]),
        schedule=rng.choice(["fcfs", "lpm"]),
        hicache=HiCacheConfig(
            host_tokens=rng.choice([page_size, 60, 200, 1000, 1000]),
            write_policy=rng.choice(["write_through", "write_through_selective", "write_back"]),
        ),
    )
    longest = rng.choice([6, 12, 50])
    histories: list[list[int]] = []
    arrivals = []
    now = 0.0
    for index in range(rng.randint(1, 30)):
        now += rng.choice([0.0, 0.3, 3.0, 9.0])
        prompt = list(range(1, 1 + rng.choice([0, 5])))
        if histories and rng.random() < 0.7:
            prompt = rng.choice(histories)
        prompt = [*prompt, *[100 + index] * rng.randint(1, 14)]
        if len(prompt) > 50:
            continue
        output = rng.randint(1, longest)
        request = make_request(f"r{index:02d}", prompt, output, output)
        histories.append([*prompt, *request.output_ids.tolist()])
        arrivals.append((now, request))
    return config, arrivals


def run(
    config: EngineConfig, arrivals: list[tuple[float, Request]], step: float | None
) -> tuple[EngineCore, list[Completion]]:
    """Hand everything in beforehand and run to the end, at once or `step` seconds at a time."""
    core = EngineCore(config, COST)
    for now, request in arrivals:
        core.submit(request, now)
    completions: list[Completion] = []
    while True:
        completions += core.advance(INFINITY if step is None else core.now_seconds + step)
        core.check_integrity()
        if core.next_event_seconds() is None:
            core.advance(core.now_seconds + 1000.0)  # what goes to the host is there
            return core, completions
