"""The recorder as the Ray actor that it is in a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from trace_rows import part_rows, turn

from concur_batch.trace.encode import encode_turn
from concur_batch.trace.files import TraceError
from concur_batch.trace.recorder import Recorder

pytestmark = pytest.mark.ray


@pytest.fixture
def cluster() -> Iterator[None]:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_an_actor_killed_and_restarted_goes_on_and_errors_reach_the_caller(cluster: None, tmp_path: Path) -> None:
    options = {"num_cpus": 0, "max_restarts": 1, "max_task_retries": 0}
    actor = ray.remote(Recorder).options(**options).remote(str(tmp_path), "n", commit_seconds=0.01)
    numbers = ray.get([actor.commit.remote(encode_turn(*turn("a", number))) for number in range(30)])
    assert numbers == [1 + number % 3 for number in range(30)]

    pid = ray.get(actor.__ray_call__.remote(lambda recorder: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    for _ in range(100):  # until the restarted actor answers; a commit is not repeated by Ray
        try:
            totals = ray.get(actor.totals.remote())
            break
        except ray.exceptions.RayActorError:
            continue
    assert totals["recovered_rows"] == {"turns": 30, "tools": 30}
    assert ray.get(actor.commit.remote(encode_turn(*turn("a", 30)))) == 1
    ray.get(actor.close.remote())
    with pytest.raises(TraceError, match="closed"):
        ray.get(actor.commit.remote(encode_turn(*turn("a", 31))))
    assert sorted(row["turn"] for row in part_rows(tmp_path, "turns")) == list(range(31))
