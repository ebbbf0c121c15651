"""The inputs, computed: the same records on every machine, so that the expected output is known without reading them back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.systems import job_module

FIRST_EVENT_MS = 1_700_000_000_000
"""Event time of the first record; each further one is a millisecond later."""
_CHUNK = 100_000


@dataclass(frozen=True, eq=False)
class Inputs:
    """Records in the order they are written. A record's slot is its place when they are sorted by (key, n): one number for both."""

    keys: np.ndarray
    amounts: np.ndarray
    key_count: int

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def counts(self) -> np.ndarray:
        """Records per key."""
        return np.bincount(self.keys, minlength=self.key_count)

    @cached_property
    def starts(self) -> np.ndarray:
        """The slot of each key's first record."""
        return np.cumsum(self.counts) - self.counts

    @cached_property
    def order(self) -> np.ndarray:
        """The record in each slot."""
        return np.argsort(self.keys, kind="stable")

    @cached_property
    def slots(self) -> np.ndarray:
        """The slot of each record."""
        slots = np.empty(len(self), np.int64)
        slots[self.order] = np.arange(len(self))
        return slots

    @cached_property
    def n(self) -> np.ndarray:
        """Number of each record within its key, from 1."""
        return self.slots - self.starts[self.keys] + 1

    @property
    def event_ms(self) -> np.ndarray:
        """Event times."""
        return FIRST_EVENT_MS + np.arange(len(self), dtype=np.int64)

    def frame(self) -> pd.DataFrame:
        """Input of a job's `expected`. A key is its number: grouping by numbers is faster, and the output has no key text."""
        return pd.DataFrame({"key": self.keys, "n": self.n, "amount": self.amounts, "event_ms": self.event_ms})

    def records(self) -> Iterator[tuple[str, str]]:
        """Kafka key and value of each record."""
        for columns in self.columns():
            yield from zip(*(column.to_pylist() for column in columns), strict=True)

    def columns(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """The same as columns of many records."""
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            keys = _joined(pa.scalar("k"), pa.array(self.keys[part]).cast(pa.string()), by="")
            numbers = (pa.array(each[part]).cast(pa.string()) for each in (self.n, self.amounts, self.event_ms))
            yield keys, _joined(keys, *numbers, by=",")


def _joined(*parts: pa.Array | pa.Scalar, by: str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, by)


@dataclass(frozen=True)
class Workload:
    """Distribution of keys: uniform, or the key of rank r with a weight of r to the power of -`zipf`. `usual`: measured by default.
    `busy`: number of other processes that compute all the time on the same machine."""

    name: str
    keys: int
    zipf: float = 0.0
    usual: bool = True
    busy: int = 0

    def inputs(self, records: int) -> Inputs:
        """Return the same inputs at every call."""
        numbers = np.random.default_rng(1)
        weights = np.cumsum(np.arange(1, self.keys + 1, dtype=float) ** -self.zipf)
        keys = np.searchsorted(weights, numbers.random(records) * weights[-1])
        return Inputs(keys, numbers.integers(0, 1000, records), self.keys)


WORKLOADS = {
    each.name: each
    for each in (
        Workload("uniform-10k", 10_000),
        Workload("uniform-1m", 1_000_000),
        Workload("skewed-10k", 10_000, zipf=1.2),
        Workload("uniform-10m", 10_000_000, usual=False),
        Workload("uniform-10k-busy", 10_000, usual=False, busy=1),
    )
}


def expected(job: str, inputs: Inputs) -> pa.Array:
    """Expected output of each slot."""
    rests = pa.array(job_module(job).expected(inputs.frame()), pa.string(), from_pandas=True)
    keys, n = (pa.array(each).cast(pa.string()) for each in (inputs.keys, inputs.n))
    return _joined(_joined(pa.scalar("k"), keys, by=""), n, rests, by=",").take(pa.array(inputs.order))


class Expectations:
    """Results of `expected` for jobs on workloads, cached in a folder: computing one takes seconds, reading it back none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, job: str, workload: str, inputs: Inputs) -> pa.Array:
        """Return the cached output, computed at most once."""
        path = self._folder / f"{workload}-{job}.arrow"
        if not path.exists():
            table = pa.table({"output": expected(job, inputs)})
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()["output"].combine_chunks()
