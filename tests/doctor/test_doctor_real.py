"""What the doctor says of a real SGLang and a real vLLM on the CPU."""

from __future__ import annotations

import re

import pytest

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.doctor.engine import inspect_engine
from concur_batch.doctor.finding import Finding
from tests.servers import ROOT

SAMPLING = {"temperature": 0.7, "top_p": 0.9, "top_k": 20}
SIGNALS = ["cached tokens", "hit counters", "locked tokens", "evictable tokens", "running requests", "time stamps"]
NAMES = ["ready", "generation", "version", "pool", "context", *SIGNALS, "same tokenizer"]


async def examine(url: str) -> dict[str, Finding]:
    tokenizer = load_tokenizer(ROOT / "models/smollm2-135m")
    findings = [finding async for finding in inspect_engine(url, None, None, SAMPLING, tokenizer)]
    assert [finding.name for finding in findings] == NAMES
    return {finding.name: finding for finding in findings}


@pytest.mark.sglang
@pytest.mark.timeout(600)
async def test_a_real_sglang(real_sglang: str) -> None:
    found = await examine(real_sglang)
    # The recipe's pool is small on purpose.
    assert {name for name, finding in found.items() if finding.verdict != "ok"} == {"context"}
    assert found["context"].verdict == "warning"
    assert found["context"].seen == "8192 tokens, more than a pool of 3072 holds"
    assert found["version"].seen == "SGLang 0.5.23"
    assert found["pool"].seen == "3072 tokens, pages of 1"
    assert found["cached tokens"].seen == "a repeated prompt hit 64 of 65 tokens"
    assert found["running requests"].seen == "1 seen"


@pytest.mark.timeout(600)
async def test_a_real_vllm(real_vllm: str) -> None:
    found = await examine(real_vllm)
    assert {finding.verdict for finding in found.values()} == {"ok"}, found
    assert found["version"].seen == "vLLM 0.32.0"
    assert found["pool"].seen == "15328 tokens, pages of 32"
    assert re.fullmatch(r"a repeated prompt hit 64 of \d+ tokens", found["cached tokens"].seen)
    assert found["same tokenizer"].seen == "the engine has the same ids for 6 texts"
