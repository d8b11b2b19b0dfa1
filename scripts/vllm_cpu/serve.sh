#!/usr/bin/env bash
# Serve SmolLM2-135M with vLLM on the CPU: bash scripts/vllm_cpu/serve.sh PORT [ARGUMENTS OF vllm serve]
#
# A KV pool of 15,360 tokens (480 blocks of 32); arguments given here win over those below.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=auto VLLM_SERVER_DEV_MODE=1
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_CACHE_ROOT=$root/.cache/vllm
export TORCHINDUCTOR_CACHE_DIR=$root/.cache/vllm/inductor
# The first start leaves its bytecode behind: half of a start without it is compilation.
unset PYTHONDONTWRITEBYTECODE
exec "$root/.venv-vllm/bin/vllm" serve "$root/models/smollm2-135m" --served-model-name smollm2 \
  --host 127.0.0.1 --port "$1" --dtype bfloat16 --max-model-len 4096 --block-size 32 --num-gpu-blocks-override 480 \
  --max-num-seqs 64 --max-num-batched-tokens 1024 --enforce-eager --generation-config vllm \
  --enable-prompt-tokens-details --enable-per-request-metrics "${@:2}"
