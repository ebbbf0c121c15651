"""The server of the live page: it reads the stores for every request and never writes.

The page shows state and cursors to every client that reaches its address. So the address is local by default. A request
must also name it as its host. A page from elsewhere then cannot send requests through its own DNS name (DNS rebinding).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_ckpt.connector import Json
from spark_ckpt.errors import CkptError, ConfigInvalid, StoreOutage
from spark_ckpt.json_values import plain
from spark_ckpt.observability.page.facts import epoch_of, facts_of
from spark_ckpt.observability.page.report import asset, drawn, going_back
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.stage_folder import stores_below
from spark_ckpt.store.state_rows import keyed_to_compare
from spark_ckpt.store.store import Store

MOST_KEYS = 50
_LARGEST = 2**53 - 1
"""Largest integer that a browser reads from JSON without a change of its digits."""


def state_at(store: Store, operator: str, before: int, after: int, keys: Mapping[str, str]) -> Json:
    """Return up to `MOST_KEYS` keys whose columns have the values `keys`, differing ones first. Null: the key has no
    state.

    Raises `EpochNotFound`, `EpochDamaged`, `ConfigInvalid` (no such key column, or no value of its type).
    """
    old, new = (keyed_to_compare(store, operator, *epochs, keys) for epochs in ((before, after), (after, before)))
    texts = sorted(old.keys() | new.keys(), key=lambda text: (old.get(text) == new.get(text), text))
    rows: list[Json] = [
        {
            "key": _readable(plain((new.get(text) or old[text])[0])),
            "before": _readable(plain(old[text][1])) if text in old else None,
            "after": _readable(plain(new[text][1])) if text in new else None,
        }
        for text in texts[:MOST_KEYS]
    ]
    return {"operator": operator, "before": before, "after": after, "matching": len(texts), "rows": rows}


def _readable(value: Json) -> Json:
    """Return larger integers as text."""
    if isinstance(value, Mapping):
        return {name: _readable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_readable(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) > _LARGEST else value


_HEADERS = {  # answers have users' data: nothing from elsewhere, in no frame, in no cache
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_MOST_FILTER = 2000


@dataclass(slots=True)
class Shown:
    """The stores of one page; the folder of a program with stages stands for theirs.

    A store that does not exist yet, or whose folder cannot be read, is looked up at every request.
    """

    uris: Sequence[str]
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    _opened: dict[str, Store] = field(default_factory=dict)
    _stages: dict[str, list[str]] = field(default_factory=dict)
    _numbered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Number the jobs before the first overview."""
        self._numbered = list(self.uris)

    def store(self, number: int) -> Store:
        """Return the store of a job, by its number in the last overview.

        Raises `ConfigInvalid` for an unknown number, `StoreForeign` (also if there is no store), or a `StoreOutage`.
        """
        if not 0 <= number < len(self._numbered):
            raise ConfigInvalid(f"there is no job {number} here")
        return self._store(self._numbered[number])

    def _store(self, uri: str) -> Store:
        if uri not in self._opened:
            self._opened[uri] = existing_store(uri, self.storage_options)
        return self._opened[uri]

    def jobs(self) -> list[Json]:
        """Return the overview of every store, or the error of reading it."""
        found = [(store, job) for uri in self.uris for store, job in self._jobs(uri)]
        self._numbered = [store for store, _ in found]
        return [job for _, job in found]

    def _jobs(self, uri: str) -> list[tuple[str, Json]]:
        try:
            stores = self._below(uri)
        except CkptError as error:
            return [(uri, _unread(uri, error))]
        return [(store, self._job(store)) for store in stores]

    def _below(self, uri: str) -> list[str]:
        """Return the store at `uri`, or those of the stages there. Raises `ConfigInvalid`, a `StoreOutage`."""
        if uri in self._opened:
            return [uri]
        if uri not in self._stages:
            found = stores_below(uri, self.storage_options)
            if found == [uri]:
                return found
            self._stages[uri] = found
        return self._stages[uri]

    def _job(self, uri: str) -> Json:
        try:
            return facts_of(self._store(uri), time.time_ns() // 1_000_000)
        except CkptError as error:
            # The next request opens it again: the store may have been deleted and created once more, with another log.
            self._opened.pop(uri, None)
            return _unread(uri, error)


def _unread(uri: str, error: CkptError) -> Json:
    return {"store": uri, "error": str(error), "outage": isinstance(error, StoreOutage)}


def application(shown: Shown, hosts: Sequence[str]) -> ASGIApp:
    """Return the ASGI application. `hosts`: accepted host names of requests, without a port."""
    routes = [
        Route("/", _page),
        Route("/page.css", _file("page.css", "text/css")),
        Route("/page.js", _file("page.js", "text/javascript")),
        Route("/api/jobs", _answer(lambda request: shown.jobs())),
        Route("/api/jobs/{job:int}/epochs/{epoch:int}", _answer(lambda request: epoch_of(*_asked(shown, request)))),
        Route(
            "/api/jobs/{job:int}/epochs/{epoch:int}/restore",
            _answer(lambda request: going_back(*_asked(shown, request))),
        ),
        Route("/api/jobs/{job:int}/state", _answer(lambda request: _state(shown, request))),
    ]
    return Guard(Starlette(routes=routes), frozenset(hosts))


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses requests for other host names, and adds security headers to every answer."""

    app: ASGIApp
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI event."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        # Two host headers are refused, too: a proxy may have judged the other one.
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1 or _without_port(given[0]) not in self.hosts:
            await PlainTextResponse("this page is not served under that name\n", 421)(scope, receive, guarded)
        else:
            await self.app(scope, receive, guarded)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).strip("[]").lower()


async def _page(request: Request) -> Response:
    return Response(drawn("spark_ckpt", None), media_type="text/html")


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def send_file(request: Request) -> Response:
        return Response(asset(name), media_type=kind)

    return send_file


def _answer(compute: Callable[[Request], Json]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            # On a thread: reading a store waits for disks, and the server has one loop for all requests.
            return JSONResponse(await run_in_threadpool(compute, request))
        except CkptError as error:
            return JSONResponse({"error": str(error), "condition": error.condition}, 400)

    return answer


def _asked(shown: Shown, request: Request) -> tuple[Store, int]:
    return shown.store(request.path_params["job"]), request.path_params["epoch"]


def _state(shown: Shown, request: Request) -> Json:
    given = request.query_params
    wanted = given.get("key", "")[:_MOST_FILTER].strip()  # bounded, since every client may ask
    numbers = [given.get(name, "") for name in ("before", "after")]
    if not all(each.isdecimal() and len(each) < 19 for each in numbers):  # more digits are no 64-bit number
        raise ConfigInvalid("an epoch is a number", hint="choose one of the list")
    name, equals, value = wanted.partition("=")
    if wanted and not equals:
        raise ConfigInvalid("a key is written as column=value", hint="leave it empty for any key")
    before, after = map(int, numbers)
    keys = {name.strip(): value} if wanted else {}
    return state_at(shown.store(request.path_params["job"]), given.get("operator", ""), before, after, keys)
