"""URL schemes that can hold a store.

Every commit needs a write that fails if the file exists already. The list names the schemes that have one; other URLs
are refused before any access.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.place import check_table_path, local_path
from spark_ckpt.store.location import Location

SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "hdfs", "viewfs")


def store_location(uri: str, storage_options: Mapping[str, str] | None = None) -> Location:
    """Return the location of a store at `uri`.

    Raises `ConfigInvalid` for a URL scheme that cannot hold a store, and for a path that no Delta table can have.
    """
    scheme = "file" if local_path(uri) is not None else urlsplit(uri).scheme.lower()
    if scheme not in SCHEMES:
        raise ConfigInvalid(
            f"no store can be kept at {scheme}://",
            hint=f"give a folder, or a URL that begins with {', '.join(f'{each}://' for each in SCHEMES)}",
        )
    check_table_path(uri, "a store")
    return Location(uri, storage_options or {})
