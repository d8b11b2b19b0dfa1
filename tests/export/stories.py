"""Trajectories for the tests of export: played by an attempt of the real agent, or read from a run."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.instructions import Instructions
from concur_batch.agent.rows import recorded_call
from concur_batch.agent.services import Services
from concur_batch.export.dialogue import Dialogues
from concur_batch.export.fidelity import Rendering
from concur_batch.export.history import Rewritten
from concur_batch.export.retelling import Retelling
from concur_batch.export.trajectory import Trajectory, Turn
from concur_batch.trace.encode import encode
from concur_batch.trace.manifest import write_manifest
from concur_batch.trace.reading import Run
from tests.agent.rollout_desk import CONFIG, TOKENIZER, Said, play
from tools_env.synthetic import SyntheticEnvironment

SPECS = SyntheticEnvironment((0, 0), (5, 5), 0).specs()


async def story(*lines: Said, tokenizer: Tokenizer = TOKENIZER, **changes: Any) -> Trajectory:
    """What an attempt leaves on record whose engine says these lines; `changes` are limits, or its `format`."""
    config = {"format": changes.pop("format")} if "format" in changes else {}

    def adjust(services: Services) -> Services:
        return replace(services, tokenizer=tokenizer, config=replace(services.config, **config))

    _, row, rows, _ = await play(*lines, adjust=adjust, **changes)
    with tempfile.TemporaryDirectory() as directory:
        journal = Path(directory) / "journal"
        journal.mkdir()
        (journal / "recorder0-000000.jsonl").write_bytes(b"".join([*rows, encode("agents", {**row, "final": True})]))
        write_manifest(directory, {"run": "story"})
        (told,) = trajectories(Run(directory))
    return told


def trajectories(run: Run) -> list[Trajectory]:
    """Those of a run's agents that have ended, in the order of their ids."""
    turns, calls = defaultdict(list), defaultdict(list)
    for row in run.table("tools").sort_by([("turn", "ascending"), ("call", "ascending")]).to_pylist():
        calls[row["agent_id"], row["attempt"], row["turn"]].append(recorded_call(row))
    for row in run.table("turns").sort_by("turn").to_pylist():
        key = row["agent_id"], row["attempt"]
        delta, output, logprobs = (row.pop(name) for name in ("input_delta_ids", "output_ids", "output_logprobs"))
        turns[key].append(
            Turn(
                row,
                np.array(delta, np.int32),
                np.array(output, np.int32),
                None if logprobs is None else np.array(logprobs, np.float32),
                calls[*key, row["turn"]],
            )
        )
    final = run.agents_final().sort_by("agent_id").to_pylist()
    return [Trajectory(run.manifest["run"], row, turns[row["agent_id"], row["attempt"]]) for row in final]


def telling(tokenizer: Tokenizer = TOKENIZER, format: Any = "hermes") -> tuple[Dialogues, Rendering]:
    """For the agents of `story`."""
    instructions = Instructions(format, CONFIG.system, SPECS)
    return Dialogues(instructions, tokenizer.template), Rendering(tokenizer)


def retelling(tokenizer: Tokenizer = TOKENIZER, rewritten: Rewritten = "split", format: Any = "hermes") -> Retelling:
    """The same, as the formats of messages take it."""
    return Retelling(*telling(tokenizer, format), rewritten)
