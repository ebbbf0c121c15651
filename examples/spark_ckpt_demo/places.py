"""Input and output of the demo: files and a Delta table, or two Kafka topics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spark_ckpt_demo.oracle import FIGURES, IDENTITY

_COLUMNS = [*IDENTITY, "tailnum", *FIGURES]
Told = Callable[[int], None]
"""Callback with the number of flights that are written."""


class DemoPlaces(Protocol):
    """Input and outputs of the job. `output` is "figures" or, after the restore, "figures-again"."""

    @property
    def kind(self) -> str:
        """Description for the reader."""

    def fill(self, flights: pd.DataFrame, told: Told) -> None:
        """Write all flights, in order, to the job's input."""

    def arguments(self, output: str) -> list[str]:
        """Return the driver's arguments for this output."""

    def read(self, output: str) -> pd.DataFrame:
        """Return all rows that a reader of committed data sees in the output."""

    def remove(self) -> None:
        """Remove everything outside of the demo's folder."""


class FilesAndDelta:
    """One Parquet file per day as input; a Delta table per output."""

    kind = "365 Parquet files to a Delta table"

    def __init__(self, folder: Path) -> None:
        self._input = folder / "flights"
        self._folder = folder

    def fill(self, flights: pd.DataFrame, told: Told) -> None:
        """Write the files; their names sort by day."""
        self._input.mkdir()
        done = 0
        for day, rows in flights.groupby(flights["departure"].str[:10]):
            table = pa.Table.from_pandas(rows, preserve_index=False)
            pq.write_table(table, self._input / f"flights-{day}.parquet")
            done += len(rows)
            told(done)

    def arguments(self, output: str) -> list[str]:
        """Return the folders as arguments."""
        return ["--input", str(self._input), "--table", str(self._folder / output), "--sink", output]

    def read(self, output: str) -> pd.DataFrame:
        """Return the table's newest version; no rows while the table does not exist."""
        from deltalake import DeltaTable

        table = self._folder / output
        if not DeltaTable.is_deltatable(str(table)):
            return pd.DataFrame(columns=_COLUMNS)
        files = DeltaTable(str(table)).file_uris()
        parts = [pq.ParquetFile(file).read(columns=_COLUMNS) for file in files]
        return pa.concat_tables(parts).to_pandas() if parts else pd.DataFrame(columns=_COLUMNS)

    def remove(self) -> None:
        """Do nothing: everything is in the demo's folder."""


def records(flights: pd.DataFrame) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of each flight: its aircraft, and the flight as JSON."""
    # NaN is no JSON, and a column of floats cannot hold None
    for row in flights.astype(object).where(flights.notna(), None).to_dict("records"):
        yield str(row["tailnum"]).encode(), json.dumps(row).encode()


def figures_of(values: list[bytes]) -> pd.DataFrame:
    """Return the rows in the output topic's values. Spark leaves null fields out of its JSON."""
    return pd.DataFrame([json.loads(value) for value in values], columns=_COLUMNS)
