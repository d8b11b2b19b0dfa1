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


# Line breaks stay together and apart from the words after them, as with the newer models' tokenizers. GPT-2's way, the
# demo's, leaves the last of several to what follows, so that an opening that ends with two has other ids at a text's
# end than within it.
_LINES_APART = {
    "type": "Sequence",
    "pretokenizers": [
        {
            "type": "Split",
            "pattern": {"Regex": r"\s*[\r\n]+|\s+(?!\S)|\s?\S+"},
            "behavior": "Isolated",
            "invert": False,
        },
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ],
}


def demo_tokenizer(source: str, *more_tokens: str, lines_apart: bool = False, **variables: str) -> Tokenizer:
    """The demo model's vocabulary under another template, with more special tokens and what the template may print."""
    definition = json.loads((DEMO / "tokenizer.json").read_text())
    if lines_apart:
        definition["pre_tokenizer"] = _LINES_APART
    next_id = max(definition["model"]["vocab"].values()) + 1
    for index, text in enumerate(more_tokens):
        definition["added_tokens"].append(
            {"id": next_id + index, "content": text, "special": True, "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
        )
    return Tokenizer(json.dumps(definition), template(source, **variables), [])
