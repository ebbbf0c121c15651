"""Oracle of leaks: records that a protocol stores, no recovery needs, and no step erases.

A record is needed if some recovery without it would decide otherwise, or its process would begin its next incarnation
otherwise. The recoveries tried are those of every single next failure, and of the failure of all processes (Wang and
Fuchs, theorem 3).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from checkpoint_lab import recovering
from checkpoint_lab.picture import canonical
from checkpoint_lab.violations import NeverErased
from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Birth, Failure, Key, Part, Plan, Record, Records
from checkpoint_protocols.vocabulary import Commanded, Erase, Send

if TYPE_CHECKING:
    from checkpoint_lab.job_recovery import RecoverableJob

NAMED_MAX = 5
"""Maximal number of leaked records in a message."""

AllRecords = dict[ProcessId, Records]


def judge_leaks(job: RecoverableJob) -> None:
    """Judge O17, at quiescence after every process has taken a final checkpoint."""
    leaked = leaks(job)
    if leaked:
        names = [f"{process}:{'/'.join(key)}" for process, key in leaked]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        what = f"stored for ever and needed by no recovery: {names[:NAMED_MAX]}{more}"
        raise NeverErased(what, [process for process, _ in leaked], names)


def leaks(job: RecoverableJob) -> list[tuple[ProcessId, Key]]:
    """Return the records that can be left out, one after the other, without any effect."""
    kept: AllRecords = {each.name: recovering.records_of(each, job.table) for each in job.everybody}
    futures = _Futures(job)
    before = futures.of(kept)
    found: list[tuple[ProcessId, Key]] = []
    for process, records in list(kept.items()):
        for key in records:
            # a record counts as leaked if it can go together with those found before
            fewer = {**kept, process: {each: record for each, record in kept[process].items() if each != key}}
            if futures.of(fewer, before) == before:
                kept = fewer
                found.append((process, key))
    return found


class _Futures:
    """The outcome of each next failure, for given records."""

    def __init__(self, job: RecoverableJob) -> None:
        self.job = job
        self.number = Incarnation(job.incarnation + 1)
        self.now: Mapping[ProcessId, Record] = {
            each.name: recovering.now(each) for each in job.everybody if each.machine is not None
        }
        everybody = frozenset(job.processes)
        self.failures = [everybody, *(frozenset({name}) for name in job.processes)]

    def of(self, records: AllRecords, expected: list[Hashable] | None = None) -> list[Hashable]:
        """Return one picture per failure; stop at the first that differs from `expected`."""
        found: list[Hashable] = []
        for place, failed in enumerate(self.failures):
            found.append(self._after(failed, records))
            if expected is not None and found[place] != expected[place]:
                break
        return found

    def _after(self, failed: frozenset[ProcessId], records: AllRecords) -> Hashable:
        survivors = {name: record for name, record in self.now.items() if name not in failed}
        job = self.job
        failure = Failure(job.graph, self.number, dict(job.table), failed, records, survivors)
        try:
            plan = job.protocol.plan(failure)
            return (canonical(plan.row), tuple(self._begin(name, plan, failed, records) for name in job.processes))
        except Exception as error:  # noqa: BLE001 - that it cannot be done is an answer too
            return type(error).__name__

    def _begin(self, name: ProcessId, plan: Plan, failed: frozenset[ProcessId], records: AllRecords) -> Hashable:
        """Return the begin of a process: its part, the record it continues from, its first effects on the application.

        Erasing a record, or reporting it to others, is no use of it.
        """
        now = None if name in failed else self.now.get(name)
        part = plan.parts.get(name, recovering.KEEP)
        if self.job.protocol.rejoin is not None and now is not None:
            part = self.job.protocol.rejoin(plan, self._birth(name, plan, now, records))
        stays = now is not None and not recovering.moves(part)
        checkpoint = now if stays else records[name].get(part.checkpoint or ())
        # the part names the record that was left out
        if part.checkpoint is not None and checkpoint is None:
            return ("nothing", canonical(part))
        make = self.job.protocol.coordinator if name == COORDINATOR else self.job.protocol.worker
        assert make is not None  # noqa: S101 - there is no process without a role
        machine = make(self._birth(name, plan, checkpoint, records))
        effects = machine.handle(Commanded("start", {"local_ms": 0}))
        told = [effect for effect in effects if not isinstance(effect, Erase) and not _is_report(effect)]
        return (_picture(part), machine.phase, canonical(machine.record()), canonical(told))

    def _birth(self, name: ProcessId, plan: Plan, checkpoint: Record | None, records: AllRecords) -> Birth:
        job = self.job
        sink = job.sinks.get(name)
        table = recovering.with_row(job.table, plan)
        shown = sink.marker if sink else 0
        return Birth(name, job.graph, self.number, table, job.settings, checkpoint, records[name], shown)


def _is_report(effect: Effect) -> bool:
    return isinstance(effect, Send) and effect.message.kind != APP


def _picture(part: Part) -> Hashable:
    return (part.checkpoint, part.initial, canonical(part.replay))
