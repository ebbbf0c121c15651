"""The rule for names that become part of a path: jobs, operators, sinks, savepoints."""

from __future__ import annotations

import re
from functools import lru_cache

from spark_ckpt.errors import ConfigInvalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# "" stands for a leading, a trailing or a double slash.
_NO_FOLDERS = frozenset({"", ".", ".."})


def valid_name(what: str, name: str) -> str:
    """Return `name` if it is valid.

    Raise `ConfigInvalid` otherwise; `what` ("savepoint", "operator") names the kind in the error.
    """
    if not isinstance(name, str) or not _is_name(name):
        raise ConfigInvalid(
            f"{name!r} is no {what} name",
            hint="use 1 to 128 letters, digits, dots, dashes and underscores, the first a letter or digit",
        )
    return name


@lru_cache(maxsize=1024)
def _is_name(name: str) -> bool:
    # Cached, because every epoch of a log names the same sinks.
    return _NAME.fullmatch(name) is not None


def valid_path(path: str) -> str:
    """Return `path` if it is relative and stays below its root. Raise `ConfigInvalid` otherwise."""
    if "\\" in path or "\0" in path or not _NO_FOLDERS.isdisjoint(path.split("/")):
        raise ConfigInvalid(
            f"{path!r} is no relative path inside the store", hint="write it as folder/file, without '..'"
        )
    return path
