"""The unpublished epochs of each sink, computed from the log's rows one by one. Pure.

A sink publishes epochs in order. So an acknowledged epoch implies that the sink also has the epochs that it descends
from. It says nothing about epochs of another branch, even if their ids are lower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from spark_ckpt.epochs.records import AnyRecord, EpochBrief, Folded, IncarnationRecord, LossAccepted, Published, SinkAck

Epochs = Mapping[int, EpochBrief]


Ancestors = Mapping[int, int]
"""Newest kept ancestor of each kept epoch whose base was dropped; 0 if none is kept."""


def parent(epochs: Epochs, brief: EpochBrief, ancestors: Ancestors) -> int:
    """Return the newest kept ancestor of an epoch; its base if the log does not say more."""
    return brief.base if brief.base in epochs else ancestors.get(brief.epoch, brief.base)


def lineage(epochs: Epochs, newest: int, ancestors: Ancestors = MappingProxyType({})) -> Iterator[EpochBrief]:
    """Return the kept epochs of the branch that ends with `newest`, newest first.

    `ancestors`: how the branch continues before a gap; by default it ends there.
    """
    brief = epochs.get(newest)
    while brief is not None:
        yield brief
        above = parent(epochs, brief, ancestors)
        # A base at or above its epoch would be a loop; a damaged log must not hang its reader.
        brief = epochs.get(above) if above < brief.epoch else None


class UnpublishedEpochs:
    """Unpublished epochs per sink, updated row by row.

    - `epochs`: the epochs of the log; `apply` adds to it.
    - `by_sink`: unpublished epochs per sink, from the rows before.
    - `latest`: newest epoch of the current branch, from the rows before.
    - `ancestors`: ancestors of epochs whose base was dropped, from the rows before.
    """

    def __init__(
        self,
        epochs: dict[int, EpochBrief],
        by_sink: Mapping[str, frozenset[int]],
        latest: int = 0,
        ancestors: Ancestors = MappingProxyType({}),
    ) -> None:
        self._epochs = epochs
        self._latest = latest
        self._ancestors = ancestors
        self._by_sink = {sink: set(numbers) for sink, numbers in by_sink.items()}

    def by_sink(self) -> dict[str, frozenset[int]]:
        """Return the unpublished epochs per sink, after the last row."""
        return {sink: frozenset(numbers) for sink, numbers in self._by_sink.items() if numbers}

    def apply(self, record: AnyRecord) -> None:
        """Apply the next row."""
        match record:
            case EpochBrief():
                self._epochs[record.epoch] = record
                self._latest = record.epoch
                for sink in record.sinks:
                    self._by_sink.setdefault(sink, set()).add(record.epoch)
                self._acked(record.acks)  # of earlier epochs: a manifest is written before its own rows are published
            case IncarnationRecord():
                self._latest = record.base
                self._acked(record.acks)
                # Last, because it corrects the acknowledgements before it.
                self.withdraw(record.taken_back)
            case Published():
                self._acked(record.acks)
            case LossAccepted():
                self._withdraw_other_branches()
            case Folded(owed=left, last=last, ancestors=ancestors):
                self._ancestors = self._ancestors if ancestors is None else ancestors  # None: no epoch was dropped
                self._left(left, last)

    def withdraw(self, sinks: Mapping[str, int]) -> None:
        """Mark all epochs above the given one as unpublished, for each of these sinks."""
        for sink, newest in sinks.items():
            lost = {brief.epoch for brief in self._epochs.values() if brief.epoch > newest and sink in brief.sinks}
            self._by_sink.setdefault(sink, set()).update(lost)

    def _acked(self, acks: Iterable[SinkAck]) -> None:
        for ack in acks:
            epochs = self._by_sink.get(ack.sink, set())
            # The walk ends at a gap: retention keeps the lineage down to the oldest unpublished epoch, so nothing
            # before a gap is unpublished.
            for brief in lineage(self._epochs, ack.epoch):
                # Everything before an epoch that was acknowledged earlier is already settled, so the walk can stop.
                if ack.sink in brief.sinks and brief.epoch not in epochs:
                    break
                epochs.discard(brief.epoch)

    def _withdraw_other_branches(self) -> None:
        """Mark all epochs of other branches as unpublished after an accepted loss.

        Before the operator accepts a loss, sinks are rolled back to the newest epoch. They may have lost their epochs
        of other branches.
        """
        stays = {brief.epoch for brief in lineage(self._epochs, self._latest, self._ancestors)}  # across gaps
        for brief in self._epochs.values():
            for sink in brief.sinks if brief.epoch not in stays else ():
                self._by_sink.setdefault(sink, set()).add(brief.epoch)

    def _left(self, left: Mapping[str, tuple[int, ...]], last: int) -> None:
        """Apply a summary of dropped rows: `left` was unpublished when rows up to epoch `last` were dropped.

        The set can only have shrunk since.
        """
        for sink, epochs in self._by_sink.items():
            epochs -= {each for each in epochs if each <= last and each not in left.get(sink, ())}
