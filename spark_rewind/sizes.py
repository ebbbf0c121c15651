"""Parser for sizes that people write."""

from __future__ import annotations

import re

from spark_ckpt.errors import ConfigInvalid

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)B?")


def bytes_of(written: str) -> int:
    """Return the number of bytes of a text such as 500MB, 10GiB or 1000. Raises `ConfigInvalid`."""
    found = _SIZE.fullmatch(written.strip())
    if found is None or float(found[1]) <= 0 or (found[3] and not found[2]):
        raise ConfigInvalid(f"budget {written} is no size", hint="write for example 10GiB")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " "))
