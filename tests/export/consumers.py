"""What the consumers of an export make of its files. Run by the Python of `.venv-train`; prints one JSON object.

    consumers.py DIRECTORY MODEL

DIRECTORY has the files as `files.py` writes them, MODEL a tokenizer with its chat template.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import polars
from datasets import Dataset, load_dataset
from harbor.utils.trajectory_validator import TrajectoryValidator
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase, set_seed
from trl import SFTConfig, SFTTrainer

SEED = 3
STEPS = 12
LENGTH = 256  # of the end of each record: a step on whole ones takes half a minute here


def main(directory: Path, model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    found: dict[str, Any] = {"datasets": {}, "polars": {}}
    for file in sorted(directory.iterdir()):
        rows = loaded(file, directory)
        found["datasets"][file.name] = {"features": str(rows.features), "rows": list(rows)}
        found["polars"][file.name] = frame(file)
    tokens, messages, turns = (
        loaded(directory / f"{name}.parquet", directory) for name in ("tokens", "messages", "prompt-completion")
    )
    found["tokens"] = prepared(trainer(tokens, tokenizer, directory))
    found["messages"] = prepared(trainer(messages, tokenizer, directory))
    found["prompt-completion"] = prepared(trainer(turns, tokenizer, directory))
    found["training"] = losses(trainer(tokens, tokenizer, directory, max_length=LENGTH))
    found["atif"] = [errors(line) for line in (directory / "atif.jsonl").read_text().splitlines()]
    found["no atif"] = errors('{"schema_version": "ATIF-v1.7", "steps": []}')
    print(json.dumps(found))


def loaded(file: Path, directory: Path) -> Dataset:
    kind = "parquet" if file.suffix == ".parquet" else "json"
    cache = str(directory.parent / "cache")
    return load_dataset(kind, data_files=str(file), split="train", cache_dir=cache)


def frame(file: Path) -> dict[str, Any]:
    """The schema as polars has it, and the sum of the rewards."""
    read = (
        polars.read_parquet(file) if file.suffix == ".parquet" else polars.read_ndjson(file, infer_schema_length=None)
    )
    kinds = {name: str(kind) for name, kind in read.schema.items()}
    return {"schema": kinds, "rows": read.height, "rewards": read["reward"].sum() if "reward" in kinds else None}


def trainer(
    rows: Dataset, tokenizer: PreTrainedTokenizerBase, directory: Path, max_length: int | None = None
) -> SFTTrainer:
    """TRL's, as it comes, with a model of two layers that knows nothing yet."""
    set_seed(SEED)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=8192, **sizes)
    arguments = SFTConfig(
        output_dir=str(directory.parent / "trained"),
        max_length=max_length,
        truncation_mode="keep_end",
        max_steps=STEPS,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=SEED,
    )
    return SFTTrainer(LlamaForCausalLM(config), arguments, train_dataset=rows, processing_class=tokenizer)


def prepared(made: SFTTrainer) -> list[dict[str, Any]]:
    """For each record the ids and labels of a batch that it is collated into with the next one."""
    rows = list(made.train_dataset)
    found = []
    for first, second in zip(rows, [*rows[1:], *rows[:1]], strict=True):
        batch = made.data_collator([first, second])
        length = len(first["input_ids"])
        found.append({name: batch[name][0].tolist()[:length] for name in ("input_ids", "labels")})
        assert batch["labels"][0][length:].eq(-100).all()
    return found


def losses(made: SFTTrainer) -> list[float]:
    made.train()
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def errors(document: str) -> list[str]:
    """What is wrong with it by harbor's validator."""
    validator = TrajectoryValidator()
    validator.validate(json.loads(document))
    return list(validator.get_errors())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
