"""Load a tokenizer and its chat template from a model directory laid out as on the Hugging Face hub."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from concur_batch.agent.encoding import Tokenizer, TokenizerError
from concur_batch.agent.template import ChatTemplate, TemplateError
from concur_batch.hub.directory import DirectoryError, end_tokens, template_sources, template_variables

__all__ = ["Tokenizer", "TokenizerError", "load_tokenizer"]


def load_tokenizer(directory: Path, now: datetime | None = None) -> Tokenizer:
    """Read tokenizer.json, tokenizer_config.json, and where they are generation_config.json, special_tokens_map.json
    and chat_template.jinja, which goes before the template of tokenizer_config.json.

    `now` is the moment that the template's `strftime_now` tells; None: the present one. Every host of a run should be
    given the same. Raises TokenizerError, with the file and how to mend it.
    """
    try:
        sources, variables = template_sources(directory), template_variables(directory)
        ends = set(end_tokens(directory))
    except DirectoryError as error:
        raise TokenizerError(str(error)) from error
    if not sources:
        raise TokenizerError(
            f"{directory}: no chat template; put chat_template.jinja there, or `chat_template` in tokenizer_config.json"
        )
    try:
        template = ChatTemplate(sources, variables, now or datetime.now())
        definition = (directory / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = Tokenizer(definition, template, ends)
    except TemplateError as error:
        raise TokenizerError(f"{directory}: chat template: {error}") from error
    except TokenizerError as error:
        raise TokenizerError(f"{directory / 'tokenizer.json'}: {error}") from error
    except FileNotFoundError as error:
        raise TokenizerError(f"{directory}: no tokenizer.json; give the directory of a model with one") from error
    if not tokenizer.eos_ids:
        raise TokenizerError(f"{directory}: no eos_token in tokenizer_config.json or generation_config.json")
    return tokenizer
