"""An S3 server for tests: moto, on loopback, with one bucket named `bucket`; and the count of its requests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration_tests.broker import free_ports

SECRET = "not-for-anybodys-eyes"


@contextmanager
def running_s3(log: Path | None = None) -> Iterator[dict[str, str]]:
    """Start a server and yield its options of deltalake, without one for conditional writes, which are the default.

    `log`: gets a line per request, see `Requests`.
    """
    [port] = free_ports(1)
    # A separate process: deltalake holds the interpreter's lock while it lists.
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with Path(os.devnull if log is None else log).open("wb") as written:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=written)
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


class Requests:
    """Counts requests of a server with a log, by method and path. A GET that lists counts as LIST."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lines = 0
        self.since()

    def since(self) -> Counter[str]:
        """Return the requests since the last call, by method."""
        return Counter(method for method, _ in self.paths_since())

    def paths_since(self) -> list[tuple[str, str]]:
        """Return method and path of the requests since the last call."""
        lines = self._log.read_text().splitlines()
        new, self._lines = lines[self._lines :], len(lines)
        found = (re.search(r'"(?:\x1b\[\d+m)*(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP', line) for line in new)
        return [("LIST" if "list-type=2" in each[2] else each[1], each[2]) for each in found if each]


def _make_bucket(url: str, server: subprocess.Popen[bytes]) -> None:
    """Make the bucket; retry until the server answers."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT"), timeout=10).close()
        except (urllib.error.URLError, ConnectionError):
            continue
        return
    raise AssertionError("the server ended")
