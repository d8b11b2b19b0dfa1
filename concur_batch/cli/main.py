"""The `concur` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Entry point. A Ctrl-C before a run has begun, or after, finds nothing to save."""
    try:
        from concur_batch.cli.app import app  # here, since importing takes long enough to be interrupted

        app()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("concur: stopped", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
