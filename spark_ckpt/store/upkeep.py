"""The checkpoint lease in the job's log, and what is done under it: one of its rows is the right, its number the fence.

The driver appends a lease under its incarnation, so that a replaced one cannot. Its holder appends the end under its token: the log
compares, so that of two holders only the newest is believed. Whatever a holder writes can be written again, and late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING

from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_rows import row_of
from spark_ckpt.store.log_state import LogState, UpkeepEntry
from spark_ckpt.store.log_table import NewRow
from spark_ckpt.store.records import Manifest, StagedFileRecord, StateFile, UpkeepEnded, UpkeepLeased
from spark_ckpt.store.retention import Retention, RetentionReport
from spark_ckpt.store.store import Store, compare

if TYPE_CHECKING:
    from spark_ckpt.store.epoch_log import EpochLog

Guard = Callable[[], None]
"""Called before each step; raises if the work must not go on."""


class UpkeepLog:
    """The rows of the checkpoint lease in the job's log."""

    def __init__(self, log: EpochLog) -> None:
        self._log = log

    def lease(self, record: UpkeepLeased) -> int:
        """Append a lease; its token. Doing it again is harmless. Raises `Fenced` if its author's incarnation was replaced, a
        `StoreOutage` if the outcome is unknown."""

        def propose(log_state: LogState) -> NewRow | None:
            if log_state.incarnation != record.incarnation:
                raise Fenced(
                    f"incarnation {record.incarnation} was replaced by {log_state.incarnation}", holder=log_state.holder
                )
            return None if _newest_is(log_state.upkeep, record) else row_of(record, record.incarnation)

        self._log.append(propose)
        told = self._log.state().upkeep
        if told is None or not _newest_is(told, record):
            raise Fenced(f"incarnation {record.incarnation} was replaced", hint="another driver runs this job")
        return told.token

    def end(self, record: UpkeepEnded) -> int:
        """Append the end of a lease; its row's number. Doing it again is harmless. Raises `Fenced` if there is a newer lease."""

        def propose(log_state: LogState) -> NewRow | None:
            _fence(log_state, record.token)
            over = log_state.upkeep is not None and log_state.upkeep.ended is not None
            return None if over else row_of(record, record.incarnation, record.epoch)

        self._log.append(propose)
        told = self._log.state().upkeep
        return told.ended_token if told is not None and told.token == record.token else 0

    def fence(self, token: int) -> LogState:
        """The log as it is now. Raises `Fenced` if lease `token` is not its newest, or over."""
        log_state = self._log.state()
        _fence(log_state, token)
        if log_state.upkeep is None or log_state.upkeep.ended is not None:
            raise Fenced(f"checkpoint lease {token} is over", hint="nothing is to be done: it is done again by others")
        return log_state


def under_lease(store: Store, token: int, policy: Retention, guard: Guard) -> tuple[LogState, RetentionReport]:
    """Do the upkeep as the holder of lease `token`: tables show the newest epoch as the newest incarnation stands on it, and what
    is not kept goes. The log's state that it was done for. Raises `Fenced`, and what `guard` raises: before each table."""
    rows = UpkeepLog(store.log)

    def fenced() -> None:
        guard()
        rows.fence(token)

    log_state = rows.fence(token)
    if log_state.latest:
        store.materialize(store.log.manifest(log_state.latest), log_state.incarnation, fenced)
    return log_state, store.retain(policy, fenced, lambda now: _fence(now, token))


def damage_of(store: Store, manifest: Manifest, known: AbstractSet[str], guard: Guard) -> tuple[str, set[str]]:
    """Read and compare the epoch's files that are not `known` to be whole; what is wrong, if anything, and those that are whole.

    Rows that are staged outside of the store are the publisher's to compare.
    """
    whole: set[str] = set()
    try:
        for name, check in checks_of(store, manifest):
            if name not in known:
                guard()
                check()
            whole.add(name)
    except CkptError as error:
        if error.retriable or isinstance(error, Fenced):
            raise
        return str(error), whole
    return "", whole


def checks_of(store: Store, manifest: Manifest) -> Iterator[tuple[str, Callable[[], None]]]:
    """A deep check of each of the epoch's files in the store, by a name of its own. Each raises `EpochDamaged`."""
    for operator, snapshot in manifest.operators.items():
        place = store.state(operator).location
        yield from _checks(place, snapshot.files, epoch=manifest.epoch, operator=operator)
    for edge, cut in manifest.edges.items():
        yield from _checks(store.edge(edge).location, cut.files, epoch=manifest.epoch, edge=edge)
    for sink, output in (*manifest.outputs.items(), *manifest.held.items()):
        if not output.root:
            yield from _checks(store.outbox(sink).location, output.files, epoch=manifest.epoch, sink=sink)


def _checks(
    place: Location, files: Sequence[StateFile | StagedFileRecord], **where: object
) -> Iterator[tuple[str, Callable[[], None]]]:
    for file in files:
        yield f"{place.uri}/{file.path}", partial(compare, place, file, **where)


def _newest_is(told: UpkeepEntry | None, record: UpkeepLeased) -> bool:
    """Whether `record` is the newest lease: a holder's clock is in no two leases of one author."""
    if told is None:
        return False
    ours = (record.incarnation, record.holder, record.boot, record.reported_ms)
    lease = told.lease
    return (lease.incarnation, lease.holder, lease.boot, lease.reported_ms) == ours and told.ended is None


def _fence(log_state: LogState, token: int) -> None:
    newest = 0 if log_state.upkeep is None else log_state.upkeep.token
    if newest != token:
        raise Fenced(
            f"checkpoint lease {token} was replaced by {newest}", hint="nothing is to be done: another one has it"
        )
