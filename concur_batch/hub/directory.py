"""Read what a model directory as on the Hugging Face hub says beside its tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class DirectoryError(ValueError):
    """A file of the directory cannot be used; the message names it."""


def template_variables(directory: Path) -> dict[str, str]:
    """The special tokens that a chat template may print, by their names in tokenizer_config.json.

    Raises DirectoryError.
    """
    config = read_json(directory / "tokenizer_config.json") or {}
    return {key: text for key in _NAMED if (text := _token_text(config.get(key))) is not None}


def template_sources(directory: Path) -> dict[str, str]:
    """The chat templates by name, one of them `default`; none where there is no template. Raises DirectoryError.

    chat_template.jinja goes before the template of tokenizer_config.json.
    """
    alone = directory / "chat_template.jinja"
    if alone.is_file():
        return {"default": alone.read_text(encoding="utf-8")}
    template = (read_json(directory / "tokenizer_config.json") or {}).get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    return {}


def end_tokens(directory: Path) -> Iterator[str | int]:
    """Every token that ends a turn, by each file that may name one, as text or id. Raises DirectoryError."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        text = _token_text((read_json(directory / name) or {}).get("eos_token"))
        if text is not None:
            yield text
    ids = (read_json(directory / "generation_config.json") or {}).get("eos_token_id")
    if isinstance(ids, int):
        yield ids
    elif isinstance(ids, list):
        yield from ids


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None where there is no such file. Raises DirectoryError."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DirectoryError(f"{path}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DirectoryError(f"{path}: not a JSON object")
    return fields


def _token_text(token: Any) -> str | None:
    """A token is written as its text, or as an object that has it under `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
