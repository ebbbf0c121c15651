"""Execution of a process's rows: an interface for the operator, its segments, its snapshots and the rows that sinks show.

A message of the lab is a segment: rows in one file. The operator of a process numbers the rows of each key and chains
their digests, so a state that is lost or restored twice shows in the rows. `MemoryExecutor` runs in milliseconds;
`SparkExecutor` (`spark_executor.py`) runs the same operator in streaming queries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.recovery import Key

KEYS = ("x", "y")
"""Keys of the rows. Every segment has a row of each."""


class Row(NamedTuple):
    """One row: its key, its origin, the sender's number of it, the operator's own number, the digest of all before it."""

    key: str
    item: str
    sent: int
    number: int
    chain: int


class KeyState(NamedTuple):
    """State of the operator for one key: the number of rows taken in, and the digest of them in order."""

    key: str
    number: int = 0
    chain: int = 0


class Snapshot(NamedTuple):
    """A captured operator: the state of its keys; for a sink also the names of its results, in order."""

    keys: tuple[KeyState, ...] = ()
    results: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Results of a micro-batch: output rows per segment that it took; `keys` if it held a marker."""

    outputs: Sequence[Sequence[Row]]
    keys: tuple[KeyState, ...] = ()


class Saved(NamedTuple):
    """A durable record; a checkpoint has a snapshot."""

    framed: str
    snapshot: Snapshot | None


def number_row(state: KeyState, row: Row) -> tuple[KeyState, Row]:
    """Take one row of a key in: return the new state and the output row."""
    number = state.number + 1
    # The sender's number and chain are part of it: a state that was restored wrongly upstream shows in all later rows.
    chain = crc32(f"{row.item} {row.number} {row.chain}".encode(), state.chain)
    return KeyState(state.key, number, chain), Row(state.key, row.item, row.number, number, chain)


def digest_of(rows: Iterable[Row]) -> str:
    """Return the digest of a segment's rows, in order, as eight hexadecimal digits."""
    return f"{crc32(repr([tuple(row) for row in rows]).encode()):08x}"


class Executor(ABC):
    """Everything around the machines that is rows. Names of processes and segments are the world's."""

    @abstractmethod
    def begin(self, process: ProcessId, keys: Sequence[KeyState]) -> None:
        """Start the operator of a process with a state; an operator that it has ends."""

    @abstractmethod
    def run(self, process: ProcessId, segments: Sequence[str], marked: bool) -> Batch:
        """Run one micro-batch over segments, in order. `marked`: with a marker after them, which captures the state."""

    @abstractmethod
    def kill(self, process: ProcessId) -> None:
        """End the operator of a process abruptly: nothing of it stays."""

    @abstractmethod
    def write(self, segment: str, rows: Sequence[Row]) -> None:
        """Write a segment durably. A segment with this name has these rows already."""

    @abstractmethod
    def read(self, segment: str) -> Sequence[Row]:
        """Return the rows of a segment."""

    @abstractmethod
    def save(self, process: ProcessId, key: Key, saved: Saved) -> None:
        """Write one record durably, in one commit with its snapshot."""

    @abstractmethod
    def erase(self, process: ProcessId, keys: Iterable[Key]) -> None:
        """Forget records."""

    @abstractmethod
    def load(self, process: ProcessId) -> Mapping[Key, Saved]:
        """Return the durable records of a process."""

    @abstractmethod
    def show(self, sink: ProcessId, rows: Sequence[Row]) -> None:
        """Append rows to the sink's table, in one commit."""

    @abstractmethod
    def shown(self, sink: ProcessId) -> Sequence[Row]:
        """Return the rows of the sink's table, in order."""


class MemoryExecutor(Executor):
    """Runs the operator in this process, and keeps everything in memory."""

    def __init__(self) -> None:
        self.states: dict[ProcessId, dict[str, KeyState]] = {}
        self.segments: dict[str, Sequence[Row]] = {}
        self.records: dict[ProcessId, dict[Key, Saved]] = {}
        self.tables: dict[ProcessId, list[Row]] = {}

    def begin(self, process: ProcessId, keys: Sequence[KeyState]) -> None:
        """Start with a state."""
        self.states[process] = {state.key: state for state in keys}

    def run(self, process: ProcessId, segments: Sequence[str], marked: bool) -> Batch:
        """Run the segments one after the other."""
        states = self.states[process]
        outputs: list[list[Row]] = []
        for segment in segments:
            outputs.append([])
            for row in self.read(segment):
                states[row.key], out = number_row(states.get(row.key, KeyState(row.key)), row)
                outputs[-1].append(out)
        return Batch(outputs, tuple(states[key] for key in sorted(states)) if marked else ())

    def kill(self, process: ProcessId) -> None:
        """Drop the state."""
        del self.states[process]

    def write(self, segment: str, rows: Sequence[Row]) -> None:
        """Keep the rows."""
        self.segments[segment] = tuple(rows)

    def read(self, segment: str) -> Sequence[Row]:
        """Return the rows."""
        return self.segments[segment]

    def save(self, process: ProcessId, key: Key, saved: Saved) -> None:
        """Keep the record."""
        self.records.setdefault(process, {})[key] = saved

    def erase(self, process: ProcessId, keys: Iterable[Key]) -> None:
        """Drop the records."""
        for key in keys:
            self.records.get(process, {}).pop(key, None)

    def load(self, process: ProcessId) -> Mapping[Key, Saved]:
        """Return the records."""
        return dict(self.records.get(process, {}))

    def show(self, sink: ProcessId, rows: Sequence[Row]) -> None:
        """Append the rows."""
        self.tables.setdefault(sink, []).extend(rows)

    def shown(self, sink: ProcessId) -> Sequence[Row]:
        """Return the rows."""
        return self.tables.get(sink, [])
