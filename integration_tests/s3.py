"""An S3 server for tests: moto, on loopback, with one bucket named `bucket`."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

SECRET = "not-for-anybodys-eyes"


@contextmanager
def running_s3() -> Iterator[dict[str, str]]:
    """Yield options of deltalake for a server of its own; no word about conditional writes: they are the default."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _make_bucket(url, server)
        yield {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": url,
        }  # fmt: skip
    finally:
        server.kill()
        server.wait()


def _make_bucket(url: str, server: subprocess.Popen[bytes]) -> None:
    """Ask until the server is there."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=10).close()
        except (urllib.error.URLError, ConnectionError):
            continue
        return
    raise AssertionError("the server ended")
