"""The tokenizers on which the agent's core is tested, and attempts without waits of chance."""

from __future__ import annotations

import pytest
from agent_models import DEMO, MOMENT, SMOLLM2

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.tokenizer import load_tokenizer


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents whose pool refused them ask again at once."""
    monkeypatch.setattr("concur_batch.agent.turn.random.uniform", lambda low, high: 0.0)


@pytest.fixture(scope="session")
def demo() -> Tokenizer:
    return load_tokenizer(DEMO, MOMENT)


@pytest.fixture(scope="session", params=[DEMO, SMOLLM2], ids=lambda path: path.name)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if not request.param.is_dir():
        pytest.skip(f"{request.param.name} is not here: run make sglang-cpu")
    return load_tokenizer(request.param, MOMENT)
