"""Servers of each protocol that misbehave."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_servers import FakeSglang, FakeVllm


@pytest.fixture
async def sglang(at_once: None) -> AsyncIterator[FakeSglang]:
    fake = FakeSglang()
    await fake.start()
    yield fake
    await fake.runner.cleanup()


@pytest.fixture
async def vllm(at_once: None) -> AsyncIterator[FakeVllm]:
    fake = FakeVllm()
    await fake.start()
    yield fake
    await fake.runner.cleanup()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients try again without waiting."""
    monkeypatch.setattr("concur_batch.engine.http.random.uniform", lambda low, high: 0.0)
