"""A reader's settings, and a directory that Arrow lists, for the tests of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_ckpt_files.listing import Directory
from spark_ckpt_files.settings import FilesSettings


def settings_of(folder: Path, **changes: Any) -> FilesSettings:
    """Settings for CSV without a header, as `FilesSource` makes them from its defaults."""
    defaults: dict[str, Any] = {
        "path": str(folder),
        "format": "csv",
        "on_error": "fail",
        "positions": False,
        "recursive": False,
        "header": False,
        "delimiter": ",",
        "quote": '"',
        "null_value": "",
        "multiline": False,
        "files_per_batch": 256,
        "bytes_per_batch": 128 << 20,
    }
    return FilesSettings(**(defaults | changes))


class ListedByArrow(Directory):
    """A local directory that is listed as one in an object store."""

    @property
    def _is_local(self) -> bool:
        return False
