"""Start the server of serve.sh, have it generate four tokens, stop it. Exit status 0: it serves.

usage: python smoke.py
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

SERVE = Path(__file__).with_name("serve.sh")
READY_SECONDS = 300


def wait_until_ready(url: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server ended with exit code {server.returncode} before it served")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"the server did not serve within {READY_SECONDS} s")


def generate(url: str) -> list[int]:
    body = {"model": "smollm2", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return list(json.load(response)["choices"][0]["token_ids"])


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(["bash", str(SERVE), str(port)], start_new_session=True)
    try:
        wait_until_ready(f"http://127.0.0.1:{port}", server)
        ids = generate(f"http://127.0.0.1:{port}")
        if len(ids) != 4:
            raise SystemExit(f"asked for 4 tokens, got {ids}")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


if __name__ == "__main__":
    main()
