"""2,000 agents on two hosts: nobody is stalled by Ray's 1,000 calls, and the event loops keep up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from concur_batch.bench.load import engine_server, write_workload
from tests.run.command import finished_run
from tests.run.test_run import most_at_once


@contextmanager
def most_threads_of_hosts() -> Iterator[dict[int, int]]:
    """The most threads that each AgentHost process of this machine was seen with, by pid, while in the block."""
    most: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.5):
            for process in psutil.process_iter(["pid", "cmdline", "num_threads"]):
                if (process.info["cmdline"] or [""])[0].startswith("ray::AgentHost"):
                    pid = process.info["pid"]
                    most[pid] = max(most.get(pid, 0), process.info["num_threads"])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        ended.set()
        watcher.join()


def test_two_thousand_agents_are_alive_together_and_all_finish(tmp_path: Path) -> None:
    """peers.md section 3 row 13: actors that stall silently at 1,000 calls, or start a thread an agent."""
    synthetic = {"synthetic": {"turns": [5, 7], "output_words": [8, 24]}}
    with most_threads_of_hosts() as threads, engine_server(tmp_path, synthetic) as url:
        workload = write_workload(
            tmp_path,
            2000,
            url,
            {
                "agent": {"hosts": 2, "limits": {"turns": 10}},
                "tools": {"kind": "synthetic", "wait_seconds": [0.5, 5.0], "observation_words": [100, 1000]},
            },
        )
        summary, run = finished_run(workload)
    final = run.agents_final().to_pylist()
    assert len(threads) >= 2  # of other runs on this machine as well
    assert max(threads.values()) < 100
    assert summary["finished"] == len(final) == 2000
    assert summary["simulated"] is True  # the server says so, though the workload names it as any other
    assert min(row["turns"] for row in final) >= 5
    assert {row["host"] for row in final} == {"host0", "host1"}
    longest = max(row["context_tokens"] for row in final)
    assert 6000 < longest <= 8500
    lives = [{**row, "life": row["ended_seconds"] - row["admitted_seconds"]} for row in final]
    assert most_at_once(lives, "admitted_seconds", "life") == 2000
    # A quiet machine reads 0.04 (`make bench-scale` shows it); a runner that tokenized in its loop read 1.2.
    assert summary["loop_lag_p99_seconds"] < 0.25
