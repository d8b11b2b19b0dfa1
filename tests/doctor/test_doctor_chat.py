"""`concur doctor` before a server of chat completions, which tells little: what it says of what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from concur_batch.agent.tokenizer import load_tokenizer
from concur_batch.doctor.engine import inspect_engine
from concur_batch.doctor.finding import Finding
from tests.doctor.doctor_servers import MODEL, serving
from tests.doctor.test_doctor_engine import faults, seen
from tests.engine.chat_server import ChatServer

TOKENIZER = load_tokenizer(MODEL)


async def examine(server: ChatServer, suffix: str = "", model: str = "", **sampling: Any) -> list[Finding]:
    async with serving(server.app()) as url:
        return [found async for found in inspect_engine(f"{url}{suffix}", None, None, sampling, TOKENIZER, model=model)]


@pytest.mark.parametrize("suffix", ["", "/v1"])
async def test_it_is_recognised_and_said_what_it_does_not_tell(suffix: str) -> None:
    findings = await examine(ChatServer(tells_cached=True), suffix)
    # It counts four characters for a token, which is no tokenizer of ours.
    assert faults(findings) == {"signals": "warning", "same tokenizer": "warning"}
    assert [finding.name for finding in findings] == [
        "generation", "context", "tools", "cached tokens", "signals", "same tokenizer",
    ]  # fmt: skip
    assert seen(findings, "generation") == "one token made by 'm'"
    assert seen(findings, "context") == "8000 tokens"
    (signals,) = (finding for finding in findings if finding.name == "signals")
    assert "engine.pool_tokens" in signals.mend


async def test_every_lack_has_its_mend() -> None:
    server = ChatServer()
    server.context_tokens, server.takes_tools = None, False
    findings = await examine(server)
    lacks = ("context", "tools", "cached tokens", "signals", "same tokenizer")
    assert faults(findings) == dict.fromkeys(lacks, "warning")
    mends = {finding.name: finding.mend for finding in findings}
    assert "agent.limits.context_tokens" in mends["context"]
    assert "agent.format" in mends["tools"]
    assert "--enable-prompt-tokens-details" in mends["cached tokens"]


async def test_the_workloads_model_is_asked_for_and_a_refusal_is_a_failure() -> None:
    server = ChatServer()
    server.names = ["a", "b"]
    assert seen(await examine(server), "generation").endswith("'a'")
    assert seen(await examine(server, model="b"), "generation").endswith("'b'")
    findings = await examine(server, model="c")
    assert faults(findings) == {"generation": "failure"}
    assert "serves no 'c', but a, b" in findings[-1].seen
    findings = await examine(server, top_k=3)
    assert (faults(findings), findings[-1].mend) == ({"generation": "failure"}, "mend model.sampling")


async def test_a_server_that_takes_no_long_prompt_is_told() -> None:
    server = ChatServer(tells_cached=True)
    server.context_tokens = 100
    findings = await examine(server)
    assert faults(findings) == {"cached tokens": "warning"}
