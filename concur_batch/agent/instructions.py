"""What all agents of a run are told alike. Its manifest keeps it, so that the run reads without the workload's files.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from concur_batch.agent.prompting import Format, tool_schema
from tools_env.spec import ToolSpec


@dataclass(frozen=True, slots=True)
class Instructions:
    """The action format, the system prompt and the tools; beside it each agent has a prompt of its own."""

    format: Format
    system: str
    specs: Sequence[ToolSpec]

    def to_json(self) -> dict[str, Any]:
        """As the manifest has them: the tools are OpenAI's function schemas."""
        return {"format": self.format, "system": self.system, "tools": [tool_schema(spec) for spec in self.specs]}


def read_instructions(value: Mapping[str, Any]) -> Instructions:
    """Instructions back from a manifest."""
    specs = [ToolSpec(**tool["function"]) for tool in value["tools"]]
    return Instructions(value["format"], value["system"], specs)
