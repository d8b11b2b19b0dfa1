"""The real servers, each started once in a session for all tests that kill none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import real_server, serving


@pytest.fixture(scope="session")
def real_sglang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of SGLang 0.5.23 on the CPU, with a pool of 3,072 tokens and a context of 8,192."""
    yield from serving(real_server("sglang", tmp_path_factory.mktemp("sglang")))


@pytest.fixture(scope="session")
def real_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of vLLM 0.32.0 on the CPU, with a pool of 479 blocks of 32 tokens and a context of 4,096."""
    yield from serving(real_server("vllm", tmp_path_factory.mktemp("vllm")))
