"""Load a tokenizer and its chat template from a model directory laid out as on the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from concur_batch.agent.encoding import Tokenizer, TokenizerError
from concur_batch.agent.template import ChatTemplate, TemplateError

__all__ = ["Tokenizer", "TokenizerError", "load_tokenizer"]


def load_tokenizer(directory: Path, now: datetime | None = None) -> Tokenizer:
    """Read tokenizer.json, tokenizer_config.json, and where they are generation_config.json, special_tokens_map.json
    and chat_template.jinja, which goes before the template of tokenizer_config.json.

    `now` is the moment that the template's `strftime_now` tells; None: the present one. Every host of a run should be
    given the same. Raises TokenizerError, with the file and how to mend it.
    """
    config = _read_json(directory / "tokenizer_config.json") or {}
    variables = {
        key: text
        for key in ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
        if (text := _token_text(config.get(key))) is not None
    }
    sources = _template_sources(directory, config)
    try:
        template = ChatTemplate(sources, variables, now or datetime.now())
        definition = (directory / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = Tokenizer(definition, template, set(_end_tokens(directory, config)))
    except TemplateError as error:
        raise TokenizerError(f"{directory}: chat template: {error}") from error
    except TokenizerError as error:
        raise TokenizerError(f"{directory / 'tokenizer.json'}: {error}") from error
    except FileNotFoundError as error:
        raise TokenizerError(f"{directory}: no tokenizer.json; give the directory of a model with one") from error
    if not tokenizer.eos_ids:
        raise TokenizerError(f"{directory}: no eos_token in tokenizer_config.json or generation_config.json")
    return tokenizer


def _template_sources(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    alone = directory / "chat_template.jinja"
    if alone.is_file():
        return {"default": alone.read_text(encoding="utf-8")}
    template = config.get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    if isinstance(template, list):
        return {entry["name"]: entry["template"] for entry in template}
    raise TokenizerError(
        f"{directory}: no chat template; put chat_template.jinja there, or `chat_template` in tokenizer_config.json"
    )


def _end_tokens(directory: Path, config: dict[str, Any]) -> Iterator[str | int]:
    """Every token that ends a turn, by each file that may name one."""
    for fields in (config, _read_json(directory / "special_tokens_map.json") or {}):
        text = _token_text(fields.get("eos_token"))
        if text is not None:
            yield text
    ids = (_read_json(directory / "generation_config.json") or {}).get("eos_token_id")
    if isinstance(ids, int):
        yield ids
    elif isinstance(ids, list):
        yield from ids


def _token_text(token: Any) -> str | None:
    """A token is written as its text, or as an object that has it under `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise TokenizerError(f"{path}: not a JSON object")
    return fields
