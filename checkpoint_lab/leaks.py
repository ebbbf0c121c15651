"""Records that nobody would miss: what a protocol stores and never erases.

A record is needed if without it some recovery would decide otherwise, or its process would begin its next life
otherwise.  The recoveries tried are those of every single next failure, and of all together (Wang and Fuchs, theorem 3).
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
"""Of many records that nobody needs."""

AllRecords = dict[ProcessId, Records]


def judge_leaks(job: RecoverableJob) -> None:
    """O17. Asked when nothing is under way and everybody has taken a checkpoint of the end."""
    leaked = leaks(job)
    if leaked:
        names = [f"{process}:{'/'.join(key)}" for process, key in leaked]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        what = f"stored for ever and needed by no recovery: {names[:NAMED_MAX]}{more}"
        raise NeverErased(what, [process for process, _ in leaked], names)


def leaks(job: RecoverableJob) -> list[tuple[ProcessId, Key]]:
    """Records that can be left out, one after the other, and nothing changes."""
    kept: AllRecords = {each.name: recovering.records_of(each, job.table) for each in job.everybody}
    futures = _Futures(job)
    before = futures.of(kept)
    found: list[tuple[ProcessId, Key]] = []
    for process, records in list(kept.items()):
        for key in records:
            fewer = {**kept, process: {each: record for each, record in kept[process].items() if each != key}}
            if futures.of(fewer, before) == before:
                kept = fewer
                found.append((process, key))
    return found


class _Futures:
    """What would follow from each next failure, given the records there are."""

    def __init__(self, job: RecoverableJob) -> None:
        self.job = job
        self.number = Incarnation(job.incarnation + 1)
        self.now: Mapping[ProcessId, Record] = {
            each.name: recovering.now(each) for each in job.everybody if each.machine is not None
        }
        everybody = frozenset(job.processes)
        self.failures = [everybody, *(frozenset({name}) for name in job.processes)]

    def of(self, records: AllRecords, expected: list[Hashable] | None = None) -> list[Hashable]:
        """One picture per failure; no more than it takes to see that they are not the expected ones."""
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
        """How the process begins: its part, what it goes on from, and the first that it does for its application.

        That it erases a record, or reports it to others, is no use of it.
        """
        now = None if name in failed else self.now.get(name)
        part = plan.parts.get(name, recovering.KEEP)
        if self.job.protocol.rejoin is not None and now is not None:
            part = self.job.protocol.rejoin(plan, self._birth(name, plan, now, records))
        stays = now is not None and not recovering.moves(part)
        checkpoint = now if stays else records[name].get(part.checkpoint or ())
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
