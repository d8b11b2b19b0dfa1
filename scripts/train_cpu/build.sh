#!/usr/bin/env bash
# Build what reads exports and trains on them, for the CPU: `.venv-train/` in the checkout.
#
# Needs Python 3.11 with pip, x86-64 Linux, about 1.5 GB of disk. Takes no arguments. A second run returns at once; a run
# that was interrupted is taken up again.
# Exit status: 0 it is in place and was seen to import, 3 no usable Python 3.11 here, anything else a step failed.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
recipe=train-cpu
venv=$(cd "$here/../.." && pwd)/.venv-train
source "$here/../cpu_build.sh"

build_venv() {
  say "making .venv-train (torch, TRL 1.16.0 and $(grep -c == "$here/requirements.txt") pinned packages; about two minutes, 1.3 GB)"
  make_venv
  say "  installing the models of harbor, whose other parts need Python 3.12"
  install --no-deps --ignore-requires-python harbor==0.25.0
  say "  seeing that all of it imports, and that torch is a build for the CPU"
  quietly "$venv/bin/python" "$here/smoke.py"
  echo "$1" > "$venv/.stamp"
}

need_python
take_turn
key=$(digest "$here" build.sh requirements.txt smoke.py)
made_from "$venv" "$key" || build_venv "$key"
say "ready: .venv-train"
