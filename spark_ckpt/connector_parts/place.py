"""One spelling for the place that a path or URI points to, so that two spellings of one place are no change."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit


def place_of(path: str) -> str:
    """An absolute path without symbolic links, or a URI without options and secrets; Hadoop's `s3a` is `s3`."""
    parts = urlsplit(path)
    if "://" not in path or parts.scheme == "file":
        return str(Path(unquote(parts.path) if parts.scheme == "file" else path).resolve())
    user, at, host = parts.netloc.rpartition("@")
    # `container@account` is part of an address, `key:secret@` is not.
    where = host if ":" in user else f"{user}{at}{host}"
    return f"{'s3' if parts.scheme in ('s3a', 's3n') else parts.scheme}://{where}{parts.path}".rstrip("/")
