"""A table with one column, `id`, version 0 empty."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return the path of the table."""
    path = tmp_path / "table"
    DeltaTable.create(str(path), schema=Schema.from_arrow(pa.schema([("id", pa.int64())])))
    return path
