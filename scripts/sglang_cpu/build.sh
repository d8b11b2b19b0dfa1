#!/usr/bin/env bash
# Build a real SGLang server for the CPU: `.venv-sglang/` and `models/smollm2-135m/` in the checkout.
#
# Needs Python 3.11 with pip, x86-64 Linux, about 3 GB of disk. Takes no arguments. A second run returns at once; a run
# that was interrupted is taken up again: each of the two results counts as made only once its stamp is in place, and
# the stamp holds a digest of what the result was made from.
# Exit status: 0 both results are in place, 3 no usable Python 3.11 here, anything else a step failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=sglang-cpu
venv=$(cd "$here/../.." && pwd)/.venv-sglang
source "$here/../cpu_build.sh"

build_venv() {
  say "making .venv-sglang (torch, sglang 0.5.23 and $(grep -c == "$here/requirements.txt") pinned packages; minutes, up to 3 GB)"
  make_venv
  say "  installing sglang without its CUDA-only dependencies"
  install --no-deps triton==3.7.1 torchvision==0.28.0 xgrammar==0.2.7 sglang==0.5.23
  say "  adding the stand-ins of scripts/sglang_cpu/shim"
  local site
  site=$(site_packages)
  cp -r "$here/shim/." "$site/"
  echo 'import sglang_cpu_standins' > "$site/sglang_cpu_standins.pth"
  say "  checking that sglang imports (slow the first time)"
  quietly "$venv/bin/python" -c 'import sglang.srt.entrypoints.http_server'
  echo "$1" > "$venv/.stamp"
}

need_python
take_turn
key=$(digest "$here" build.sh requirements.txt shim)
made_from "$venv" "$key" || build_venv "$key"
make_model
say "ready: .venv-sglang, models/smollm2-135m"
