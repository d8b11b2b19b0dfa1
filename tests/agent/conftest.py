"""The tokenizers on which the agent's core is tested."""

from __future__ import annotations

import pytest
from agent_models import DEMO, MOMENT, SMOLLM2

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.tokenizer import load_tokenizer


@pytest.fixture(scope="session")
def demo() -> Tokenizer:
    return load_tokenizer(DEMO, MOMENT)


@pytest.fixture(scope="session", params=[DEMO, SMOLLM2], ids=lambda path: path.name)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if not request.param.is_dir():
        pytest.skip(f"{request.param.name} is not here: run make sglang-cpu")
    return load_tokenizer(request.param, MOMENT)
