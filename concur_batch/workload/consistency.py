"""Blocks that are right by themselves and do not go together."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from concur_batch.simulator.config import EngineConfig
from concur_batch.workload.errors import Problem
from concur_batch.workload.schema import SandboxTools, SimulatedEngine, Workload
from concur_batch.workload.source import Source


def contradictions(workload: Workload, source: Source) -> Iterator[Problem]:
    """Every pair of settings with which no agent could do its work."""
    engine, tools = workload.engine, workload.tools
    names = list(tools.names) if isinstance(tools, SandboxTools) else ["work", "submit"]
    synthetic = isinstance(engine, SimulatedEngine) and engine.synthetic is not None
    if synthetic and "work" not in names:
        reason = "a synthetic load calls the tool `work`, which the sandbox does not have"
        yield source.problem(("engine", "synthetic"), reason, "add `tools: {kind: synthetic}`, or give a `script`")
    if workload.agent.format == "bash" and "bash" not in names:
        reason = f"the format bash needs the tool `bash`; the tools are {', '.join(names)}"
        yield source.problem(("agent", "format"), reason, "give sandbox tools with it, or choose another format")
    if isinstance(engine, SimulatedEngine):
        try:
            EngineConfig(
                pool_tokens=engine.pool_tokens,
                page_size=engine.page_size,
                context_tokens=engine.context_tokens,
                chunked_prefill_tokens=engine.chunked_prefill_tokens,
                max_running_requests=engine.max_running_requests,
            )
        except ValidationError as error:
            reason = str(error.errors(include_url=False)[0]["ctx"]["error"])
            yield source.problem(("engine",), reason, "give larger ones")
