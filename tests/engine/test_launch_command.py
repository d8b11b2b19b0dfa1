"""What is launched: the command line of each kind, the GPUs that it takes, when it is started again, its client."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from concur_batch.driver.engines import gpus_per_node
from concur_batch.engine.clients import connect
from concur_batch.engine.command import Place, server_command, server_env
from concur_batch.engine.pools import Replica, name_pools
from concur_batch.engine.protocol import EngineError, EngineInfo
from concur_batch.engine.restarts import FAILED_STARTS, FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, Restarts
from concur_batch.engine.sglang import SglangEngine
from concur_batch.engine.vllm import VllmEngine
from concur_batch.workload.schema import HiCache, Launch, SglangLaunch
from concur_batch.workload.schema import SglangEngine as SglangSection
from concur_batch.workload.schema import VllmEngine as VllmSection


def launch(**fields: Any) -> Launch:
    return Launch(python=Path("/venv/bin/python"), model=Path("/models/m"), **fields)


def sglang(**fields: Any) -> SglangLaunch:
    return SglangLaunch(python=Path("/venv/bin/python"), model=Path("/models/m"), **fields)


SGLANG = "/venv/bin/python -m sglang.launch_server --model-path /models/m --enable-metrics"
VLLM = (
    "/venv/bin/python -m vllm.entrypoints.cli.main serve /models/m "
    "--enable-prompt-tokens-details --enable-per-request-metrics"
)
ADDRESS = "--served-model-name name --host 10.0.0.7 --port 8000"
HICACHE = "--enable-hierarchical-cache --hicache-write-policy"
PARALLEL = [(tp, dp) for tp in (1, 2) for dp in (1, 4)]
ARGS: list[list[str]] = [[], ["--tp-size=8", "--port", "9"]]
HICACHES = [
    (None, ""),
    (HiCache(), f" {HICACHE} write_through"),
    (HiCache(ratio=2.5, write_policy="write_back"), f" {HICACHE} write_back --hicache-ratio 2.5"),
    (
        HiCache(size_gb=64, write_policy="write_through_selective"),
        f" {HICACHE} write_through_selective --hicache-size 64",
    ),
]


def ranks(tensor: str, tp: int, data: str, dp: int) -> str:
    return (f" {tensor} {tp}" if tp > 1 else "") + (f" {data} {dp}" if dp > 1 else "")


def sglang_command(place: Place, priorities: bool = False, sessions: bool = False, **fields: Any) -> list[str]:
    engine = SglangSection(kind="sglang", launch=sglang(**fields), priorities=priorities, sessions=sessions)
    return server_command(engine, "name", place)


def vllm_command(place: Place, **fields: Any) -> list[str]:
    return server_command(VllmSection(kind="vllm", launch=launch(**fields)), "name", place)


@pytest.mark.parametrize(("parallel", "hicache", "args"), list(itertools.product(PARALLEL, HICACHES, ARGS)))
def test_the_command_of_sglang(parallel: tuple[int, int], hicache: tuple[HiCache | None, str], args: list[str]) -> None:
    tp, dp = parallel
    command = sglang_command(Place("10.0.0.7", 8000), tp=tp, dp=dp, hicache=hicache[0], args=args)
    expected = f"{SGLANG}{ranks('--tp-size', tp, '--dp-size', dp)}{hicache[1]} {ADDRESS}"
    assert command == [*expected.split(), *args]


@pytest.mark.parametrize(("priorities", "sessions"), list(itertools.product((False, True), repeat=2)))
def test_sglang_is_asked_to_heed_what_requests_carry(priorities: bool, sessions: bool) -> None:
    flags = priorities * " --enable-priority-scheduling" + sessions * " --enable-session-radix-cache"
    assert sglang_command(Place("10.0.0.7", 8000), priorities, sessions) == f"{SGLANG}{flags} {ADDRESS}".split()


@pytest.mark.parametrize(("parallel", "args"), list(itertools.product(PARALLEL, ARGS)))
def test_the_command_of_vllm(parallel: tuple[int, int], args: list[str]) -> None:
    tp, dp = parallel
    command = vllm_command(Place("10.0.0.7", 8000), tp=tp, dp=dp, args=args)
    expected = f"{VLLM}{ranks('--tensor-parallel-size', tp, '--data-parallel-size', dp)} {ADDRESS}"
    assert command == [*expected.split(), *args]


MEETING = ("10.0.0.7", 2900)
PLACES = [
    Place("10.0.0.7", 8000, 0, MEETING), Place("10.0.0.8", 8001, 1, MEETING), Place("10.0.0.9", 8002, 2, MEETING)
]  # fmt: skip


def test_the_commands_of_a_sglang_over_three_nodes() -> None:
    assert [sglang_command(place, tp=6, nodes=3, args=["--x"]) for place in PLACES] == [
        f"{SGLANG} --tp-size 6 --nnodes 3 --node-rank {rank} --dist-init-addr 10.0.0.7:2900 "
        f"--served-model-name name --host {host} --port {port} --x".split()
        for rank, (host, port) in enumerate([("10.0.0.7", 8000), ("10.0.0.8", 8001), ("10.0.0.9", 8002)])
    ]


def test_the_commands_of_a_vllm_over_three_nodes() -> None:
    """As they were seen to serve: three parts of the real vLLM on the CPU, tp 3."""
    together = "--master-addr 10.0.0.7 --master-port 2900 --distributed-executor-backend mp"
    assert [vllm_command(place, tp=3, nodes=3) for place in PLACES] == [
        f"{VLLM} --tensor-parallel-size 3 --nnodes 3 --node-rank {rank} {together}{headless} "
        f"--served-model-name name --host {host} --port {port}".split()
        for rank, host, port, headless in [
            (0, "10.0.0.7", 8000, ""),
            (1, "10.0.0.8", 8001, " --headless"),
            (2, "10.0.0.9", 8002, " --headless"),
        ]
    ]


def test_the_environment_of_a_part() -> None:
    assert server_env(launch(env={"A": "1"}), PLACES[0]) == {"A": "1"}
    assert server_env(launch(tp=3, nodes=3), PLACES[1]) == {"VLLM_HOST_IP": "10.0.0.8"}
    assert server_env(launch(tp=3, nodes=3, env={"VLLM_HOST_IP": "::1"}), PLACES[1]) == {"VLLM_HOST_IP": "::1"}


@pytest.mark.parametrize("fields", [{"tp": 3}, {"tp": 4, "gpus": 3}, {"nodes": 3, "tp": 2, "dp": 2}])
def test_ranks_that_nodes_cannot_share(fields: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="cannot be shared evenly by"):
        launch(**{"nodes": 2, **fields})


@pytest.mark.parametrize(
    ("fields", "node_gpus", "gpus"),
    [
        ({}, [0, 0], 0),  # a CPU cluster
        ({"tp": 2, "dp": 2}, [0], 0),
        ({}, [0, 8], 1),
        ({"tp": 2, "dp": 2, "replicas": 4}, [8, 8], 4),
        ({"tp": 8, "dp": 8, "gpus": 8}, [8], 8),  # data-parallel attention: the ranks share the GPUs
        ({"gpus": 0, "replicas": 9}, [1], 0),  # on the CPU, though there are GPUs
        ({"tp": 16, "nodes": 2}, [8, 8], 8),
        ({"tp": 4, "nodes": 2, "replicas": 2}, [4, 2, 2], 2),
        ({"tp": 2, "nodes": 2, "replicas": 9}, [0, 0], 0),
    ],
)
def test_gpus_of_a_server_on_each_of_its_nodes(fields: dict[str, int], node_gpus: list[float], gpus: int) -> None:
    assert gpus_per_node(launch(**fields), node_gpus) == gpus


@pytest.mark.parametrize(
    ("fields", "node_gpus"),
    [
        ({"gpus": 1}, [0]),
        ({"tp": 8}, [4, 4]),
        ({"tp": 3, "replicas": 5}, [8, 8]),
        ({"replicas": 9}, [8]),
        ({"tp": 4, "nodes": 2}, [8, 1]),  # each part is on a node of its own
        ({"tp": 4, "nodes": 2, "replicas": 2}, [8, 2]),
    ],
)
def test_servers_that_no_node_has_the_gpus_for(fields: dict[str, int], node_gpus: list[float]) -> None:
    with pytest.raises(EngineError, match=r"a server's on (one node|2 nodes), and the nodes have"):
        gpus_per_node(launch(**fields), node_gpus)


def test_more_nodes_than_the_cluster_has() -> None:
    with pytest.raises(EngineError, match=r"nodes is 3, and the nodes of the cluster are 2: .*--ray-address"):
        gpus_per_node(launch(tp=3, nodes=3), [0, 0])


def test_waits_double_and_begin_anew_after_ten_healthy_minutes() -> None:
    restarts = Restarts()
    assert [restarts.wait_seconds(1.0) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert [restarts.wait_seconds(seconds) for seconds in (599.9, 600.0, None, None)] == [60, 1, 2, 4]


@given(st.lists(st.one_of(st.none(), st.floats(0, 2000))))
def test_five_starts_in_a_row_that_fail_are_the_last(deaths: list[float | None]) -> None:
    restarts, failed = Restarts(), 0
    for served_seconds in deaths:
        wait_seconds = restarts.wait_seconds(served_seconds)
        failed = failed + 1 if served_seconds is None else 0
        if failed == FAILED_STARTS:
            assert wait_seconds is None
            return
        assert wait_seconds is not None
        assert FIRST_WAIT_SECONDS <= wait_seconds <= LONGEST_WAIT_SECONDS


@pytest.mark.parametrize(("kind", "client"), [("sglang", SglangEngine), ("vllm", VllmEngine)])
async def test_each_kind_has_its_client(kind: Any, client: type) -> None:
    engine = connect(kind, "http://127.0.0.1:9", 5, 0, "key")
    assert type(engine) is client
    await engine.close()


def test_a_pool_is_of_its_replicas_kind() -> None:
    info = EngineInfo(None, 100, 1, 100, (), (0, 1), (50, 50))
    pools = name_pools([Replica("vllm", "http://a", "key"), Replica("sglang", "http://b")], [info, info])
    told = [(pool.name, pool.kind, pool.url, pool.api_key) for pool in pools]
    assert told == [
        ("0.0", "vllm", "http://a", "key"),
        ("0.1", "vllm", "http://a", "key"),
        ("1.0", "sglang", "http://b", None),
        ("1.1", "sglang", "http://b", None),
    ]
