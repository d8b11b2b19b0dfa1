"""The formats by name, and how each is made for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import get_args

from concur_batch.agent.instructions import Instructions, read_instructions
from concur_batch.agent.tokenizer import TokenizerError, load_tokenizer
from concur_batch.export.atif import Atif
from concur_batch.export.completion import PromptCompletion
from concur_batch.export.dialogue import Dialogues
from concur_batch.export.fidelity import Rendering
from concur_batch.export.form import Form
from concur_batch.export.history import Rewritten
from concur_batch.export.messages import Messages
from concur_batch.export.retelling import Retelling
from concur_batch.export.sharegpt import ShareGpt
from concur_batch.export.tokens import Tokens
from concur_batch.trace.reading import Run

__all__ = ["FORMS", "REWRITTEN", "NoForm", "Rewritten"]

REWRITTEN: tuple[Rewritten, ...] = get_args(Rewritten)


class NoForm(Exception):
    """A run cannot be exported in a format. One line: why, and how to mend it."""


def _tokens(run: Run, rewritten: Rewritten) -> Form:
    """With the engine's log probabilities, where the run has asked for them."""
    logprobs = bool(run.manifest["workload"]["model"].get("sampling", {}).get("logprobs"))
    instructions = _instructions(run) if run.manifest.get("ids_estimated") else None
    telling = None if instructions is None else _telling(run, instructions)
    return Tokens(rewritten, logprobs=logprobs, telling=telling)


def _told(form: Callable[[Retelling], Form], run: Run, rewritten: Rewritten) -> Form:
    return form(Retelling(*_telling(run, _needed(run)), rewritten))


def _atif(run: Run, rewritten: Rewritten) -> Form:
    """What it says of a rewritten history is as true as of any other."""
    instructions = _needed(run)
    dialogues, _ = _telling(run, instructions)
    manifest = run.manifest
    return Atif(instructions, dialogues, manifest["workload"]["model"]["name"], manifest["versions"]["concur-batch"])


FORMS: Mapping[str, Callable[[Run, Rewritten], Form]] = {
    "messages": partial(_told, Messages),
    "tokens": _tokens,
    "prompt-completion": partial(_told, PromptCompletion),
    "sharegpt": partial(_told, ShareGpt),
    "atif": _atif,
}
"""Each raises NoForm."""


def _instructions(run: Run) -> Instructions | None:
    told = run.manifest.get("prompting")
    return None if told is None else read_instructions(told)


def _needed(run: Run) -> Instructions:
    instructions = _instructions(run)
    if instructions is None:
        replayed = run.manifest["workload"].get("replay") is not None
        why = "its agents were replayed" if replayed else "an older version made it"
        raise NoForm(f"{run.path.name} holds no prompts, since {why}: the one format that can be made of it is tokens")
    return instructions


def _telling(run: Run, instructions: Instructions) -> tuple[Dialogues, Rendering]:
    """By the run's own tokenizer, at the moment that its template has told the agents."""
    began = datetime.strptime(run.manifest["started_at"], "%Y-%m-%dT%H:%M:%S%z")
    try:
        tokenizer = load_tokenizer(run.path / "model", began)
    except TokenizerError as error:
        raise NoForm(str(error)) from error
    return Dialogues(instructions, tokenizer.template), Rendering(tokenizer)
