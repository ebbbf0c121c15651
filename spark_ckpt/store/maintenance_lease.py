"""The checkpoint lease in the job's log, and the maintenance done under it.

A row is the lease; its number is the fencing token.

The driver appends a lease under its incarnation, so a replaced driver cannot. The holder appends the end under its
token. The log compares both, so of two holders only the newest counts. Every write of a holder can be repeated, and may
come late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from spark_ckpt.epochs.log_state import LogState, MaintenanceEntry
from spark_ckpt.epochs.records import MaintenanceEnded, MaintenanceLeased, Manifest, StagedFileRecord, StateFile
from spark_ckpt.epochs.retention import Retention, RetentionReport
from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.store import proposals
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_rows import row_of
from spark_ckpt.store.log_table import NewRow
from spark_ckpt.store.store import Store, compare

Guard = Callable[[], None]
"""Function called before each step. It raises if the work must stop."""


class MaintenanceLog:
    """The rows of the checkpoint lease in the job's log."""

    def __init__(self, log: EpochLog) -> None:
        self._log = log

    def lease(self, record: MaintenanceLeased) -> int:
        """Append a lease and return its token. A repeated call changes nothing.

        Raises `Fenced` if its author's incarnation was replaced, a `StoreOutage` if the outcome is unknown.
        """

        def propose(log_state: LogState) -> NewRow | None:
            proposals.fence(log_state, record.incarnation)
            return None if _newest_is(log_state.maintenance, record) else row_of(record, record.incarnation)

        self._log.append(propose)
        told = self._log.state().maintenance
        # Between the append and this read a quick holder may have ended it; another lease is a newer incarnation's.
        if told is None or not _newest_is(told, record):
            raise Fenced(f"incarnation {record.incarnation} was replaced", hint="another driver runs this job")
        return told.token

    def end(self, record: MaintenanceEnded) -> int:
        """Append the end of a lease and return its row's number. A repeated call changes nothing.

        Raises `Fenced` if there is a newer lease.
        """

        def propose(log_state: LogState) -> NewRow | None:
            _fence(log_state, record.token)
            # An earlier attempt with an unknown outcome may have ended the lease.
            over = log_state.maintenance is not None and log_state.maintenance.ended is not None
            return None if over else row_of(record, record.incarnation, record.epoch)

        self._log.append(propose)
        told = self._log.state().maintenance
        return told.ended_token if told is not None and told.token == record.token else 0

    def fence(self, token: int) -> LogState:
        """Return the current state of the log. Raises `Fenced` if lease `token` is not the newest one, or has ended."""
        log_state = self._log.state()
        _fence(log_state, token)
        if log_state.maintenance is None or log_state.maintenance.ended is not None:
            raise Fenced(f"checkpoint lease {token} is over", hint="nothing is to be done: it is done again by others")
        return log_state


def under_lease(store: Store, token: int, policy: Retention, guard: Guard) -> tuple[LogState, RetentionReport]:
    """Do the maintenance as the holder of lease `token`.

    Return the log state that it was done for, and what retention removed.

    The tables then show the newest epoch, as the newest incarnation continues from it. Files that retention does not
    keep are deleted.

    Raises `Fenced`, and the errors of `guard`, which is called before each table.
    """
    rows = MaintenanceLog(store.log)

    def fenced() -> None:
        # Read before each table: a holder that was replaced stops early. What it still does is repeated by its
        # successor.
        guard()
        rows.fence(token)

    log_state = rows.fence(token)
    if log_state.latest:
        store.materialize(store.log.manifest(log_state.latest), log_state.incarnation, fenced)
    # The token is checked again inside the commit that drops epochs: a holder that slept loses it.
    return log_state, store.retain(policy, fenced, lambda now: _fence(now, token))


def damage_of(store: Store, manifest: Manifest, known: AbstractSet[str], guard: Guard) -> tuple[str, set[str]]:
    """Read and compare the epoch's files that are not in `known`.

    Return a description of the damage (empty if there is none), and the names of whole files.

    `known`: names of files that were compared before. Rows staged outside of the store are left to their publisher.
    Raises retriable errors, `Fenced`, and the errors of `guard`.
    """
    whole: set[str] = set()
    try:
        for name, check in checks_of(store, manifest):
            if name not in known:
                guard()
                check()
            whole.add(name)
    except CkptError as error:
        # An outage or a lost lease says nothing about the file.
        if error.retriable or isinstance(error, Fenced):
            raise
        return str(error), whole
    return "", whole


def checks_of(store: Store, manifest: Manifest) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield a deep check per file of the epoch in the store, with a unique name. Each raises `EpochDamaged`."""
    for operator, snapshot in manifest.operators.items():
        place = store.state(operator).location
        yield from _checks(place, snapshot.files, epoch=manifest.epoch, operator=operator)
    for edge, cut in manifest.edges.items():
        yield from _checks(store.edge(edge).location, cut.files, epoch=manifest.epoch, edge=edge)
    if manifest.spark_state is not None:
        states = store.spark_states
        for path, check in states.checks(manifest.spark_state, epoch=manifest.epoch):
            yield f"{states.location.uri}/{path}", check
    for sink, output in (*manifest.outputs.items(), *manifest.held.items()):
        if not output.root:
            yield from _checks(store.staged(sink).location, output.files, epoch=manifest.epoch, sink=sink)


def _checks(
    place: Location, files: Sequence[StateFile | StagedFileRecord], **where: object
) -> Iterator[tuple[str, Callable[[], None]]]:
    for file in files:
        yield f"{place.uri}/{file.path}", partial(compare, place, file, **where)


def _newest_is(told: MaintenanceEntry | None, record: MaintenanceLeased) -> bool:
    """Return True if `record` is the newest lease, also if it has ended."""
    if told is None:
        return False
    # The clock's reading identifies a lease: no two leases of an author share one.
    ours = (record.incarnation, record.holder, record.boot, record.reported_ms)
    lease = told.lease
    return (lease.incarnation, lease.holder, lease.boot, lease.reported_ms) == ours


def _fence(log_state: LogState, token: int) -> None:
    newest = 0 if log_state.maintenance is None else log_state.maintenance.token
    if newest != token:
        raise Fenced(
            f"checkpoint lease {token} was replaced by {newest}", hint="nothing is to be done: another one has it"
        )
