"""Which decided epochs each sink is not known to have, as the log's rows tell it one by one. Pure.

An acknowledged epoch stands on others, and those the sink has, too: it gets them in their order.  An epoch of another branch it
need not have, whatever the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from spark_ckpt.store.records import AnyRecord, EpochBrief, Folded, IncarnationRecord, LossAccepted, Published, SinkAck

Epochs = Mapping[int, EpochBrief]


def lineage(epochs: Epochs, newest: int) -> Iterator[EpochBrief]:
    """The kept epochs that `newest` stands on, itself first, newest first."""
    brief = epochs.get(newest)
    while brief is not None:
        yield brief
        brief = epochs.get(brief.base) if brief.base < brief.epoch else None


def passes_beside(epochs: Epochs, newest: int, epoch: int) -> bool:
    """Whether the lineage of `newest` is known to leave `epoch` out. Where epochs between were forgotten it is not known."""
    for brief in lineage(epochs, newest):
        if brief.epoch <= epoch:
            return brief.epoch < epoch
        if not brief.base:
            return True
    return False


class Debts:
    """Row by row. `epochs`: those of the log, which whoever reads the rows adds to; `owed`: per sink, and `latest`: what the job
    stands on, from the rows before."""

    def __init__(self, epochs: dict[int, EpochBrief], owed: Mapping[str, frozenset[int]], latest: int = 0) -> None:
        self._epochs = epochs
        self._latest = latest
        self._owed = {sink: set(numbers) for sink, numbers in owed.items()}

    def owed(self) -> dict[str, frozenset[int]]:
        """Per sink, as of the last row."""
        return {sink: frozenset(numbers) for sink, numbers in self._owed.items() if numbers}

    def take_in(self, record: AnyRecord) -> None:
        """The next row."""
        match record:
            case EpochBrief():
                self._epochs[record.epoch] = record
                self._latest = record.epoch
                for sink in record.sinks:
                    self._owed.setdefault(sink, set()).add(record.epoch)
                self._acked(record.acks)
            case IncarnationRecord():
                self._latest = record.base
                self._acked(record.acks)
                self.take_back(record.taken_back)
            case Published():
                self._acked(record.acks)
            case LossAccepted():
                self._taken_back()
            case Folded(owed=None):
                self._known_by_number(record.acked)
            case Folded(owed=owed, last=last) if owed is not None:
                self._left(owed, last)

    def take_back(self, sinks: Mapping[str, int]) -> None:
        """Each of these sinks has nothing after the epoch that stands with it."""
        for sink, newest in sinks.items():
            lost = {brief.epoch for brief in self._epochs.values() if brief.epoch > newest and sink in brief.sinks}
            self._owed.setdefault(sink, set()).update(lost)

    def _acked(self, acks: Iterable[SinkAck]) -> None:
        for ack in acks:
            owed = self._owed.get(ack.sink, set())
            for brief in lineage(self._epochs, ack.epoch):
                if ack.sink in brief.sinks and brief.epoch not in owed:
                    break
                owed.discard(brief.epoch)

    def _taken_back(self) -> None:
        """Sinks are taken back to the newest epoch before a loss is accepted: what they had of other branches may be gone."""
        stays = {brief.epoch for brief in lineage(self._epochs, self._latest)}
        for brief in self._epochs.values():
            for sink in brief.sinks if brief.epoch not in stays else ():
                self._owed.setdefault(sink, set()).add(brief.epoch)

    def _known_by_number(self, acked: Mapping[str, int]) -> None:
        """An older version summed rows up: it had no more than one number for each sink."""
        for sink, newest in acked.items():
            owed = self._owed.get(sink, set())
            owed -= {each for each in owed if each <= newest and not passes_beside(self._epochs, newest, each)}

    def _left(self, left: Mapping[str, tuple[int, ...]], last: int) -> None:
        """What was owed when rows up to epoch `last` were summed up; since then it can only have become less."""
        for sink, owed in self._owed.items():
            owed -= {each for each in owed if each <= last and each not in left.get(sink, ())}
