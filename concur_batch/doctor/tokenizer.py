"""Whether a model's tokenizer and chat template carry a dialogue by token ids, and whether the engine's is the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import tokenizers

from concur_batch.agent.increment import rewriting
from concur_batch.agent.template import TemplateError, Tools
from concur_batch.agent.tokenizer import Tokenizer
from concur_batch.doctor.finding import Finding, failure, ok, warning

# Text as agents meet it: prose, code with its indentation, other scripts, digits, control characters.
TEXTS = (
    "The run has ended; 3 of 17 files differ.",
    "def f(x):\n    if x:\n\treturn {'a': [1, 2]}\n\n\n",
    "naïve 東京 😀 Ελλάδα",
    "  1234567890 3.14159e-10\r\n",
    '{"name": "bash", "arguments": {"command": "ls -l | wc"}}',
)


def inspect_tokenizer(directory: Path, tokenizer: Tokenizer, tools: Tools | None, role: str) -> Iterator[Finding]:
    """Every check of what stands in the directory. `tools` are those that prompts show, `role` that of observations."""
    yield check_vocabulary(directory)
    yield check_round_trip(tokenizer)
    names = ", ".join(sorted(tokenizer.decode([token], skip_special=False) for token in tokenizer.eos_ids))
    yield ok("end of turn", names)
    yield check_template(tokenizer, tools, role)


def check_vocabulary(directory: Path) -> Finding:
    """The model must know every id that the tokenizer may give; its config.json need not be there."""
    name = "vocabulary"
    size = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab_size()
    try:
        known = json.loads((directory / "config.json").read_text(encoding="utf-8")).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        known = None
    if isinstance(known, int) and size > known:
        seen = f"{size} tokens, but the model's config.json has a vocabulary of {known}"
        return failure(name, seen, "give the directory whose tokenizer.json is this model's")
    return ok(name, f"{size} tokens")


def check_round_trip(tokenizer: Tokenizer) -> Finding:
    """Ids of a text must decode to the same text: by it actions and their arguments are read."""
    altered = [text for text in TEXTS if tokenizer.decode(tokenizer.encode_content(text)) != text]
    if not altered:
        return ok("round trip", f"ids of {len(TEXTS)} texts decode to the same texts")
    back = tokenizer.decode(tokenizer.encode_content(altered[0]))
    return warning(
        "round trip",
        f"ids of {altered[0]!r} decode to {back!r}",
        "the tokenizer normalizes text: files that agents write may differ from what the model meant",
    )


def check_template(tokenizer: Tokenizer, tools: Tools | None, role: str) -> Finding:
    """What follows an assistant's turn must be appended to the history and alter nothing before it."""
    name = "chat template"
    try:
        tokenizer.increments(tools).text([{"role": role, "name": "t", "content": "o"}])
        rewrites = rewriting(tokenizer.template, tools, role)
    except TemplateError as error:
        return failure(name, str(error), "give a chat_template.jinja that takes user, assistant and observation turns")
    if rewrites is not None:
        mend = "none needed: a run's history keeps what the engine saw; for training, take a template that appends only"
        return warning(name, rewrites, mend)
    return ok(name, "every turn appends to the history")


def probe_texts(tokenizer: Tokenizer) -> list[tuple[str, list[int]]]:
    """Texts and our ids of them, to be compared with the engine's; the last is a dialogue with control tokens."""
    messages = [
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "v"},
    ]
    dialogue = tokenizer.template.render(messages, None, generation_prompt=True)
    return [(text, tokenizer.encode(text)) for text in (*TEXTS, dialogue)]


def compare_ids(texts: Sequence[tuple[str, list[int]]], theirs: Sequence[list[int]]) -> Finding:
    """The engine's ids of the texts beside ours. One token that it puts before every text, its BOS, is no difference:
    we send ids, to which it adds nothing."""
    extra = {len(ids) - len(ours) for (_, ours), ids in zip(texts, theirs, strict=True)}
    head = theirs[0][:1] if extra == {1} else []
    differs = [text for (text, ours), ids in zip(texts, theirs, strict=True) if ids != [*head, *ours]]
    return _compared(differs, len(texts), "ids")


def compare_counts(texts: Sequence[tuple[str, list[int]]], theirs: Sequence[int]) -> Finding:
    """As `compare_ids`, for an engine that tells only how many tokens a text has."""
    extra = {count - len(ours) for (_, ours), count in zip(texts, theirs, strict=True)}
    head = 1 if extra == {1} else 0
    differs = [text for (text, ours), count in zip(texts, theirs, strict=True) if count != len(ours) + head]
    return _compared(differs, len(texts), "numbers of tokens")


def _compared(differs: Sequence[str], texts: int, what: str) -> Finding:
    name = "same tokenizer"
    if not differs:
        return ok(name, f"the engine has the same {what} for {texts} texts")
    mend = "give the tokenizer directory of the model that the engine serves (model.tokenizer, --tokenizer)"
    return failure(name, f"{len(differs)} of {texts} texts have other {what} in the engine: {differs[0]!r}", mend)
