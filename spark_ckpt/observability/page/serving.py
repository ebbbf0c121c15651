"""Serves the page: in the foreground for `spark-ckpt ui`, on a thread next to a job."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import uvicorn

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.observability.page.server import Shown, application

_QUIET: dict[str, Any] = {
    "log_config": None,
    "access_log": False,
    "ws": "none",
    "http": "h11",
    "loop": "asyncio",
    "lifespan": "off",
    "server_header": False,
    "timeout_graceful_shutdown": 1,
}
"""Server settings: no request log, no protocol but HTTP."""
_CLOSE_S = 2.0
_LOCAL = ("127.0.0.1", "::1", "localhost")


class PageServer:
    """Server of the page. Listens from the start, answers when it runs. Raises `ConfigInvalid` if the address is in
    use.
    """

    def __init__(
        self,
        stores: Sequence[str],
        host: str = "127.0.0.1",
        port: int = 0,
        names: Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._socket = _listening(host, port)  # first: an address in use is refused before a job begins
        self._port = int(self._socket.getsockname()[1])
        self._host = host
        # A page of this machine may be requested under any of its local names.
        hosts = {*(each.lower() for each in names), host.lower(), *(_LOCAL if host in _LOCAL else ())}
        app = application(Shown(list(stores), dict(storage_options or {})), sorted(hosts))
        config = uvicorn.Config(app, **_QUIET)
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}/"

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        self._server.run(sockets=[self._socket])

    def start(self) -> None:
        """Serve on a thread, until `close`."""
        self._thread = threading.Thread(target=self.run, name="ckpt-page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread is not None:
            # At most so long: a client that never ends its request must not hold up the end of a job.
            self._thread.join(_CLOSE_S)
        self._socket.close()


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:  # the second: a name that no host can have
        raise ConfigInvalid(
            f"the page cannot be served at {host}:{port}: {getattr(error, 'strerror', None) or error}",
            hint="give another port, or an address of this machine",
        ) from error
