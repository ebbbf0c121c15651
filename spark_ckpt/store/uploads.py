"""Requests to an object store that delta-rs makes more of: an upload, a file that one writer alone can create, a read.

delta-rs takes three requests for any upload, because it begins a multipart upload, two to read a file, and more for a
commit, because it reads the log before and after it.

obstore is a binding of object_store, the Rust library that delta-rs uses, too. So it takes the same options and variables
of the environment. What it might not know is left to delta-rs: other kinds of stores, other options, an AWS profile.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

if TYPE_CHECKING:
    from obstore import WritableFile

_ONE_REQUEST_BYTES = 8 << 20
_Store = S3Store | GCSStore | AzureStore
_KINDS: Mapping[str, Callable[..., _Store]] = {
    "s3": S3Store.from_url,
    "s3a": S3Store.from_url,
    "gs": GCSStore.from_url,
    "az": AzureStore.from_url,
    "abfs": AzureStore.from_url,
    "abfss": AzureStore.from_url,
}
_BEFORE_A_PROFILE = ("aws_access_key_id", "access_key_id", "aws_web_identity_token_file")
"""Credentials as options, or in capitals as variables of the environment."""
_OF_CLIENT = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "proxy_ca_certificate",
        "proxy_excludes",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    ]
)
"""Options of the HTTP client. obstore takes them apart from those of the store, and ends the process otherwise."""

UploadFailed = BaseError
"""An upload may raise it, or OSError."""


def open_upload(uri: str, options: Mapping[str, str], path: str) -> WritableFile | None:
    """Open the file `path` below `uri` for writing; None if delta-rs has to write it.

    The file appears with `close`, and never if it is dropped before. Up to 8 MiB wait in memory for one request; a larger
    file becomes a multipart upload. Raises `UploadFailed`, OSError.
    """
    store = _store(uri, tuple(sorted(options.items())))
    return None if store is None else obstore.open_writer(store, path, buffer_size=_ONE_REQUEST_BYTES)


def create_file(uri: str, options: Mapping[str, str], path: str, content: bytes) -> bool:
    """Create the file `path` below `uri` if there is none: of two writers exactly one succeeds. It appears whole.

    Return False if delta-rs has to do it. Raises `UploadFailed` if the file exists, after any other failure, and if the
    outcome is unknown.
    """
    store = _store(uri, tuple(sorted(options.items()))) if "://" in uri else _folder(uri)
    if store is None:
        return False
    # A local store writes a hidden file and links it to the name, so that the file appears whole; the link fails if the
    # name exists.
    obstore.put(store, path, content, mode="create")
    return True


def read_object(uri: str, options: Mapping[str, str], path: str) -> bytes | None:
    """Return the content of the file `path` below `uri`; None if delta-rs has to read it.

    Raises `UploadFailed`, FileNotFoundError.
    """
    store = _store(uri, tuple(sorted(options.items())))
    return None if store is None else bytes(obstore.get(store, path).bytes())


def list_objects(uri: str, options: Mapping[str, str], folder: str, after: str) -> list[tuple[str, int, int]] | None:
    """Return path, size in bytes and time (ms since 1970 UTC) of the files in `folder` whose names sort after `after`; None
    if delta-rs has to list them. Raises `UploadFailed`.
    """
    store = _store(uri, tuple(sorted(options.items())))
    if store is None:
        return None
    pages = obstore.list(store, folder, offset=f"{folder}/{after}")  # the object store skips the names before it
    found = (each for page in pages for each in page)
    return [(each["path"], each["size"], round(each["last_modified"].timestamp() * 1000)) for each in found]


def delete_objects(uri: str, options: Mapping[str, str], paths: Sequence[str]) -> bool:
    """Delete files; missing ones are ignored. Return False if delta-rs has to do it. Raises `UploadFailed`."""
    store = _store(uri, tuple(sorted(options.items())))
    # The others take a request for each file, and refuse a missing one.
    if not isinstance(store, S3Store):
        return False
    obstore.delete(store, paths)
    return True


@functools.lru_cache(maxsize=64)
def _folder(path: str) -> LocalStore:
    return LocalStore(path)


# Cached, because each store has HTTP connections of its own.
@functools.lru_cache(maxsize=64)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> _Store | None:
    scheme = uri.partition("://")[0]
    given = {name.lower(): value for name, value in options}
    if scheme not in _KINDS or (scheme.startswith("s3") and _has_profile(given)):
        return None
    client = {short: given[name] for name in given if (short := name.removeprefix("aws_")) in _OF_CLIENT}
    config = {name: value for name, value in given.items() if name.removeprefix("aws_") not in client}
    try:
        return _KINDS[scheme](uri, config=config, client_options=client)
    except (BaseError, ValueError):  # an option that only delta-rs knows
        return None


def _has_profile(given: Mapping[str, str]) -> bool:
    """True if delta-rs may take credentials from a profile, which object_store cannot read."""
    if any(name in given or name.upper() in os.environ for name in _BEFORE_A_PROFILE):
        return False
    files = (Path.home() / ".aws" / name for name in ("credentials", "config"))
    return "AWS_PROFILE" in os.environ or any(file.exists() for file in files)
