"""Where a store can be kept. Every commit to it needs a write that fails if the file is there already, so the list names what
has one; other URLs are refused before anything is tried with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.place import check_table_path, local_path
from spark_ckpt.store.location import Location

SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "hdfs", "viewfs")


def store_location(uri: str, storage_options: Mapping[str, str] | None = None) -> Location:
    """The store's location. Raises `ConfigInvalid` for a URL of a kind that no store can be kept at, and for a path that
    no Delta table can have."""
    scheme = "file" if local_path(uri) is not None else urlsplit(uri).scheme.lower()
    if scheme not in SCHEMES:
        raise ConfigInvalid(
            f"no store can be kept at {scheme}://",
            hint=f"give a folder, or a URL that begins with {', '.join(f'{each}://' for each in SCHEMES)}",
        )
    check_table_path(uri, "a store")
    return Location(uri, storage_options or {})
