"""Blocks that are right by themselves and do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from concur_batch.workload.errors import Problem
from concur_batch.workload.schema import OpenaiEngine, SandboxTools, SimulatedEngine, VerifyCommand, Workload
from concur_batch.workload.simulated import engine_config
from concur_batch.workload.source import Source


def contradictions(workload: Workload, source: Source) -> Iterator[Problem]:
    """Every pair of settings with which no agent could do its work."""
    engine, tools = workload.engine, workload.tools
    if isinstance(engine, SimulatedEngine):
        yield from _unsimulable(engine, source)
    if workload.replay is not None and isinstance(engine, OpenaiEngine):
        reason = "a replay forces the length of outputs, which the protocol of OpenAI cannot"
        yield source.problem(("replay",), reason, "give the server as kind sglang or vllm, or simulated")
    if workload.replay is not None:  # nothing acts: no tool runs, no text is parsed
        return
    names = list(tools.names) if isinstance(tools, SandboxTools) else ["work", "submit"]
    synthetic = isinstance(engine, SimulatedEngine) and engine.synthetic is not None
    if synthetic and "work" not in names:
        reason = "a synthetic load calls the tool `work`, which the sandbox does not have"
        yield source.problem(("engine", "synthetic"), reason, "add `tools: {kind: synthetic}`, or give a `script`")
    if workload.agent.format == "bash" and "bash" not in names:
        reason = f"the format bash needs the tool `bash`; the tools are {', '.join(names)}"
        yield source.problem(("agent", "format"), reason, "give sandbox tools with it, or choose another format")
    for number, check in enumerate(workload.verify):
        if isinstance(check, VerifyCommand) and not isinstance(tools, SandboxTools):
            reason = "a command to check a result runs in the sandbox, and these tools have none"
            yield source.problem(("verify", number), reason, "remove it, or give sandbox tools")


def _unsimulable(engine: SimulatedEngine, source: Source) -> Iterator[Problem]:
    try:
        engine_config(engine)
    except ValidationError as error:
        reason = str(error.errors(include_url=False)[0]["ctx"]["error"])
        yield source.problem(("engine",), reason, "give larger ones")
