"""What a simulated server is made of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from concur_batch.simulator.chat import ChatScript
from concur_batch.simulator.config import EngineConfig
from concur_batch.simulator.conversation import ActionFormat
from concur_batch.simulator.cost import CostModel
from concur_batch.simulator.script import TASK_PATTERN
from concur_batch.simulator.synthetic import SyntheticScript


class ConfigError(ValueError):
    """A ServerConfig that cannot be served; the message is one line."""


class ServerConfig(BaseModel):
    """What to serve: exactly one of `scripts` (JSON Lines, one script a task), `synthetic` and `chat`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: EngineConfig = Field(description="Of one dp rank: each has a pool, a tree and a scheduler of its own.")
    dp_size: int = Field(1, ge=1, description="Data-parallel ranks.")
    cost: CostModel = Field(default_factory=CostModel)
    time_scale: float = Field(1.0, gt=0, description="Simulated seconds per real second.")
    tokenizer: Path = Field(description="Directory with tokenizer.json.")
    scripts: Path | None = None
    synthetic: SyntheticScript | None = None
    chat: ChatScript | None = None
    format: ActionFormat = "hermes"
    task_pattern: str = Field(TASK_PATTERN, description="Finds the task's id in the first user message.")
    model_name: Annotated[str, Field(pattern=r"^[^\"\\\n]+$")] = "simulated"
    host: str = "127.0.0.1"
    port: int = Field(0, ge=0, le=65_535, description="0: any free one.")

    @property
    def tool_call_parser(self) -> str | None:
        """The name of SGLang's parser for what the model writes; None: its calls stay text."""
        return "hermes" if self.format == "hermes" else None
