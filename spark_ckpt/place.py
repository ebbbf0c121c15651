"""Canonical form of paths and URIs, and a check for paths of Delta tables.

Two spellings of one place have one canonical form, so that they compare equal.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from spark_ckpt.errors import ConfigInvalid

# file:/x, file:///x and file://host/x: the path begins at its slash.
_FILE = re.compile(r"file:(//[^/]*)?(?=/)", re.IGNORECASE)
_REFUSED = re.compile(r"%[0-9A-Fa-f]{2}|[\x00-\x1f\x7f\\\ud800-\udfff]")
"""Characters that deltalake misreads in a path.

It decodes a path that is not encoded and takes a backslash for a separator. It cannot parse control characters or lone
surrogates.
"""


def local_path(path: str) -> Path | None:
    """Return the path on a local (or mounted) file system of a path or `file:` URI; None for any other URI.

    Raises `ConfigInvalid` for anything but a text, such as a `pathlib.Path`.
    """
    if not isinstance(path, str):
        raise ConfigInvalid(f"{path!r} is no text", hint=f"write a path or URL as text: str({path!r})")
    if uri := _FILE.match(path):
        return Path(unquote(path[uri.end() :]))
    return None if "://" in path else Path(path)


def place_of(path: str) -> str:
    """Return an absolute path without symbolic links, or a URI without options and secrets.

    Hadoop's `s3a` becomes `s3`.
    """
    if (local := local_path(path)) is not None:
        return str(local.resolve())
    parts = urlsplit(path)
    user, at, host = parts.netloc.rpartition("@")
    # `container@account` is part of an address, `key:secret@` is not.
    where = host if ":" in user else f"{user}{at}{host}"
    return f"{'s3' if parts.scheme in ('s3a', 's3n') else parts.scheme}://{where}{parts.path}".rstrip("/")


def check_table_path(path: str, of: str) -> None:
    """Raise `ConfigInvalid` for a path that deltalake misreads or cannot read.

    `of`: "a store" or "a table", for the error.
    """
    local = local_path(path)
    if not path:  # it would be the working folder
        raise ConfigInvalid(f"the path of {of} is empty", hint="give a folder or a URL")
    found = _REFUSED.search(unquote(path) if local is None else str(local.absolute()))
    if found is not None:
        raise ConfigInvalid(
            f"the path of {of} has {found[0]!a} in it, and deltalake would look elsewhere",
            hint="choose a path without %XX (a percent sign and two hexadecimal digits), backslashes and control "
            "characters; as UTF-8",
            path=ascii(path),
        )
