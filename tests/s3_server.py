"""A local S3 server, and buckets in it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs

ENV = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}


class Server:
    """Its objects are gone with it."""

    def __init__(self, port: int) -> None:
        self._query = f"?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"

    def uri(self, path: str) -> str:
        return f"s3://{path}{self._query}"

    def make_bucket(self, name: str) -> None:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(self.uri(name) + "&allow_bucket_creation=true")
        filesystem.create_dir(path)

    def objects(self, path: str) -> list[str]:
        """The names of all objects below."""
        filesystem, root = pyarrow.fs.FileSystem.from_uri(self.uri(path))
        found = filesystem.get_file_info(pyarrow.fs.FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(file.path.removeprefix(f"{root}/") for file in found if file.is_file)


@contextmanager
def s3_server() -> Iterator[Server]:
    """Started on a port of its own; ENV must be in the environment of those who use it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/").close()
                break
            except OSError:
                assert process.poll() is None
                time.sleep(0.1)
        yield Server(port)
    finally:
        process.kill()
        process.wait()
