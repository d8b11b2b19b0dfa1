"""concur: offline batch rollouts of tool-using agents under cache-aware admission control."""

import os
from pathlib import Path

# Ray reads these when it is imported, wherever that happens first. `ray start` makes clusters that ask for the token in
# this file, but a client does not offer it by itself.
TOKEN = Path.home() / ".ray" / "auth_token"
if os.environ.get("RAY_AUTH_TOKEN") or TOKEN.exists():
    os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns of a change to come
