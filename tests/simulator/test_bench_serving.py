"""SGLang's own benchmark client, as installed, against the simulated server."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from simulated_server import MODEL, served

from tests.servers import ROOT

BACKENDS = ["sglang", "sglang-oai", "sglang-oai-chat"]
PROMPTS, OUTPUT_TOKENS = 6, 24
# One process for all, since importing torch takes longer than everything else.
CLIENT = """
import json, sys
from sglang.benchmark.serving import cli_main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["serving", *arguments]
    cli_main()
"""


@pytest.mark.sglang
async def test_every_request_completes_and_its_tokens_are_reported(tmp_path: Path) -> None:
    python = ROOT / ".venv-sglang" / "bin" / "python"
    if not (ROOT / ".venv-sglang/.stamp").exists():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no SGLang here: make sglang-cpu (needs Python 3.11)")
    # The client imports every data set's reader; the one that needs this package is not used.
    (tmp_path / "datasets.py").write_text("load_dataset = None\n")
    async with served() as url:
        runs = [
            [
                *("--backend", backend, "--base-url", url, "--model", "simulated", "--tokenizer", str(MODEL)),
                *("--dataset-name", "random-ids", "--num-prompts", str(PROMPTS), "--random-range-ratio", "1.0"),
                *("--random-input-len", "100", "--random-output-len", str(OUTPUT_TOKENS), "--warmup-requests", "0"),
                *("--output-file", str(tmp_path / f"{backend}.jsonl"), "--output-details", "--disable-tqdm"),
            ]
            for backend in BACKENDS
        ]
        process = await asyncio.create_subprocess_exec(
            *(str(python), "-c", CLIENT, json.dumps(runs)),
            env={**os.environ, "PYTHONPATH": str(tmp_path), "HF_HUB_OFFLINE": "1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        assert process.returncode == 0, said.decode()[-200000:]
    for backend in BACKENDS:
        result = json.loads((tmp_path / f"{backend}.jsonl").read_text())
        assert result["completed"] == PROMPTS, result["errors"]
        assert result["total_output_tokens"] == PROMPTS * OUTPUT_TOKENS
        assert result["output_lens"] == [OUTPUT_TOKENS] * PROMPTS
        assert all(text.startswith("This answer is simulated:") for text in result["generated_texts"])
        assert all(ttft > 0 for ttft in result["ttfts"])
