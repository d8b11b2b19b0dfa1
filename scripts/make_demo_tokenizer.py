"""Make `workloads/demo_model/`: the small tokenizer and chat template which the simulated engine speaks.

A byte-level BPE of 6,144 entries, trained on what agents read and write: Python's own sources and reference
text (the standard library of the running interpreter), and JSON, CSV and log lines made here from a seed.
Byte-level, so every text round-trips exactly. The committed files are the ones to use; another Python version
has another standard library and so makes other merges.

    python scripts/make_demo_tokenizer.py [directory]
"""

import csv
import io
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

VOCABULARY = 6144
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Single tokens, yet ordinary text: a decoder that skips special tokens must keep an agent's calls.
MARKUP = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is not none and content is defined -%}
        {%- for part in content -%}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set has_system = messages and messages[0].role == "system" -%}
{%- if tools or has_system -%}
    {{- "<|im_start|>system\\n" -}}
    {%- if has_system -%}{{- text(messages[0].content) -}}{%- endif -%}
    {%- if tools -%}
        {%- if has_system -%}{{- "\\n\\n" -}}{%- endif -%}
        {{- "# Tools\\n\\nThese functions can be called, one JSON signature a line:\\n<tools>" -}}
        {%- for tool in tools -%}{{- "\\n" -}}{{- tool | tojson -}}{%- endfor -%}
        {{- "\\n</tools>\\n\\nTo call a function, write its name and arguments as one JSON object " -}}
        {{- "between tags; several calls may follow each other:\\n<tool_call>\\n" -}}
        {{- '{"name": "<function>", "arguments": {"<argument>": "<value>"}}' -}}
        {{- "\\n</tool_call>" -}}
    {%- endif -%}
    {{- "<|im_end|>\\n" -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "system" and loop.first -%}
    {%- elif message.role == "tool" -%}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" -%}
            {{- "<|im_start|>user" -}}
        {%- endif -%}
        {{- "\\n<tool_response>\\n" -}}{{- text(message.content) -}}{{- "\\n</tool_response>" -}}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" -%}
            {{- "<|im_end|>\\n" -}}
        {%- endif -%}
    {%- else -%}
        {{- "<|im_start|>" -}}{{- message.role -}}{{- "\\n" -}}{{- text(message.content) -}}
        {%- if message.role == "assistant" and message.tool_calls -%}
            {%- for call in message.tool_calls -%}
                {%- set function = call.function if call.function is defined else call -%}
                {%- if not loop.first or message.content -%}{{- "\\n" -}}{%- endif -%}
                {{- "<tool_call>\\n" -}}{{- '{"name": ' -}}{{- function.name | tojson -}}
                {{- ', "arguments": ' -}}
                {%- if function.arguments is string -%}
                    {{- function.arguments -}}
                {%- else -%}
                    {{- function.arguments | tojson -}}
                {%- endif -%}
                {{- "}\\n</tool_call>" -}}
            {%- endfor -%}
        {%- endif -%}
        {{- "<|im_end|>\\n" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n" -}}{%- endif -%}
"""


def library_texts() -> Iterator[str]:
    """The standard library's top-level modules and a few packages, and its reference text (`pydoc_data`)."""
    root = Path(sysconfig.get_path("stdlib"))
    packages = ["json", "logging", "email", "unittest", "http", "asyncio", "pydoc_data", "collections"]
    for directory in [root, *(root / name for name in packages)]:
        for path in sorted(directory.glob("*.py")):
            yield path.read_text(encoding="utf-8", errors="replace")


def generated_texts(seed: int = 7, count: int = 2_000) -> Iterator[str]:
    """Tool calls, access logs and CSV rows: the shapes that fill an agent's context."""
    rng = random.Random(seed)
    words = [
        "alpha",
        "orders",
        "users",
        "report",
        "total",
        "amount",
        "city",
        "price",
        "status",
        "error",
        "retry",
        "login",
    ]
    tools = ["bash", "python", "read_file", "write_file", "edit_file", "list_files", "search_files", "submit"]
    keys = ["command", "code", "path", "content", "answer"]
    for _ in range(count):
        path = f"/{rng.choice(words)}/{rng.choice(words)}/{rng.randrange(10_000)}"
        day = f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"
        minute = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
        level = rng.choice(["INFO", "WARNING", "ERROR", "DEBUG"])
        result = f"status={rng.choice([200, 404, 500])} ms={rng.randrange(999)}"
        yield f"{day}T{minute}:00Z {level} {rng.choice(words)}: GET {path} {result}\n"
        arguments = {rng.choice(keys): f"cat {path}.txt | sort | uniq -c"}
        yield "\n" + json.dumps({"name": rng.choice(tools), "arguments": arguments}) + "\n"
        row = io.StringIO()
        csv.writer(row).writerow([rng.randrange(10_000), rng.choice(words), rng.randrange(500) / 4, day])
        yield row.getvalue()


def make_tokenizer() -> Tokenizer:
    """Train the tokenizer; the first ids are the special tokens, then the markup."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*SPECIAL, *MARKUP],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*library_texts(), *generated_texts()], trainer)
    return _with_plain_markup(tokenizer)


def _with_plain_markup(tokenizer: Tokenizer) -> Tokenizer:
    """The trainer gives ids only to special tokens; take the mark off the markup and keep its ids."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] in SPECIAL
    return Tokenizer.from_str(json.dumps(state))


def config() -> dict[str, object]:
    """`tokenizer_config.json` in the form that Hugging Face's loaders read."""
    added = {
        str(index): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL,
        }
        for index, token in enumerate([*SPECIAL, *MARKUP])
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
        "chat_template": CHAT_TEMPLATE,
    }


def main() -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "workloads/demo_model")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(make_tokenizer().to_str(pretty=False) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
