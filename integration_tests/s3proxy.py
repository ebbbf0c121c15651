"""S3Proxy: a server that speaks S3's protocol and keeps objects as files, so it can be killed and started again on its data.

It refuses `If-None-Match: *` for an existing object, but checks first and writes later: of two concurrent writers both may succeed.
So it suits drivers that run one after the other, and it is the counter-example for checks of a server for two drivers.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration_tests.broker import SMALL, free_ports
from spark_ckpt import jars

LOCK = Path(__file__).with_name("s3proxy.lock.json")
BUCKET = "bucket"
SECRET = "not-for-anybodys-eyes"
_READY_S = 60.0
_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender"><encoder><pattern>%d %level %msg%n</pattern></encoder></appender>
  <root level="warn"><appender-ref ref="out"/></root>
</configuration>
"""
"""Default logging writes ten thousand lines a test."""


class S3Proxy:
    """One server with one bucket, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        [self._port] = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "data" / BUCKET).mkdir(parents=True)
        (folder / "logback.xml").write_text(_LOGBACK)
        settings = {
            "s3proxy.authorization": "aws-v2-or-v4",
            "s3proxy.identity": "test",
            "s3proxy.credential": SECRET,
            "s3proxy.endpoint": self.url,
            "s3proxy.ignore-unknown-headers": "true",  # checksums, which deltalake sends with what it deletes
            "jclouds.provider": "filesystem-nio2",
            "jclouds.identity": "nobody",
            "jclouds.credential": "nothing",
            "jclouds.filesystem.basedir": str(folder / "data"),
        }
        (folder / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def url(self) -> str:
        """Address, the same after every restart."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def options(self) -> dict[str, str]:
        """Options of deltalake, without one for conditional writes, which are the default."""
        return {
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": self.url,
        }  # fmt: skip

    def start(self) -> None:
        """Start, and wait until it answers."""
        paths = jars.fetch(jars.read_lock(LOCK), "the test's S3 server")
        quiet = f"-Dlogback.configurationFile={self._folder / 'logback.xml'}"
        command = [
            str(jars.find_java()),
            *SMALL,
            quiet,
            "-cp",
            os.pathsep.join(map(str, paths)),
            "org.gaul.s3proxy.Main",
        ]
        command += ["--properties", str(self._folder / "s3proxy.conf")]
        with (self._folder / "s3proxy.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline_s = time.monotonic() + _READY_S
        while not self._answers():
            assert self._process.poll() is None, "the server ended"
            assert time.monotonic() < deadline_s, "the server did not come up"
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        assert self._process is not None, "the server was never started"
        self._process.kill()
        self._process.wait(30)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.url, timeout=5).close()
        except urllib.error.HTTPError:
            return True  # it asks for credentials
        except OSError:
            return False
        return True


@contextmanager
def running_s3proxy(folder: Path) -> Iterator[S3Proxy]:
    """Start a server; kill it at the end."""
    folder.mkdir(parents=True)
    server = S3Proxy(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
