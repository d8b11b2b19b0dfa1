"""The real servers, each started once in a session for all tests that kill none, and an S3 server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3_server import ENV, Server, s3_server
from tests.servers import real_server, serving

_SERVERS = ("real_sglang", "real_vllm")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a real server come last, server by server: an idle one still takes a share of a core, from tests
    that look at the event loop's lag."""
    items.sort(key=_server_of)


def _server_of(item: pytest.Item) -> int:
    """0 for none, else which of _SERVERS."""
    assert isinstance(item, pytest.Function)
    engine = f"real_{item.callspec.params.get('address')}" if hasattr(item, "callspec") else ""
    used = [number for number, name in enumerate(_SERVERS, 1) if name == engine or name in item.fixturenames]
    return max(used, default=0)


@pytest.fixture(scope="session")
def real_sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of SGLang 0.5.23 on the CPU, with a pool of 3,072 tokens and a context of 8,192."""
    yield from serving(real_server("sglang", tmp_path_factory.mktemp("sglang")))


@pytest.fixture(scope="session")
def real_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of vLLM 0.32.0 on the CPU, with a pool of 479 blocks of 32 tokens and a context of 4,096."""
    yield from serving(real_server("vllm", tmp_path_factory.mktemp("vllm")))


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    """With a bucket of the name `bucket`; the environment has its credentials for as long as it runs."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENV.items():
            patch.setenv(name, value)
        with s3_server() as server:
            server.make_bucket("bucket")
            yield server
