"""Tokenizers and templates made for a test."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from concur_batch.agent.encoding import Tokenizer
from concur_batch.agent.template import ChatTemplate

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "workloads" / "demo_model"
SMOLLM2 = ROOT / "models" / "smollm2-135m"
MOMENT = datetime(2024, 7, 26, 12, 30)


def template(source: str, **variables: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, variables, MOMENT)


def demo_tokenizer(source: str, *more_tokens: str) -> Tokenizer:
    """The demo model's vocabulary under another template, with more special tokens."""
    definition = json.loads((DEMO / "tokenizer.json").read_text())
    next_id = max(definition["model"]["vocab"].values()) + 1
    for index, text in enumerate(more_tokens):
        definition["added_tokens"].append(
            {"id": next_id + index, "content": text, "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
        )
    return Tokenizer(json.dumps(definition), template(source), [])
