"""Rows that may be appended to the epoch log on a given state. Pure: log state in, a row, None or an error out.

`EpochLog.append` appends a row only right after the state it was proposed on. So a check made here still holds when the
row is in the log.
"""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import (
    EpochBrief,
    HandoverAsked,
    Heartbeat,
    Holder,
    IncarnationRecord,
    IndexSaid,
    LossAccepted,
    Manifest,
    Published,
    ReaderMoved,
    Released,
    SavepointDropped,
    SavepointRecord,
    SinkAck,
)
from spark_ckpt.epochs.restore import ADOPTING, RESTORING_LINE, REWINDING, RecoveryPoint
from spark_ckpt.errors import (
    ConfigInvalid,
    EpochNotFound,
    Fenced,
    RestoreUnderWay,
    RewindUnderWay,
    RunFailed,
    StoreInUse,
)
from spark_ckpt.store.holder import provably_dead
from spark_ckpt.store.log_rows import row_of
from spark_ckpt.store.log_table import NewRow


def fence(log_state: LogState, incarnation: int) -> None:
    """Raise `Fenced` if a newer incarnation runs the job."""
    if log_state.incarnation != incarnation:
        raise Fenced(
            f"incarnation {incarnation} was replaced by {log_state.incarnation}",
            holder=log_state.holder,
            since=_utc(log_state.since_ms),
            hint=f"stop this driver; the other one continues the {log_state.kind}",
        )


def refuse_if_held(log_state: LogState, own: int | None, now_ms: int, ended: int | None = None) -> None:
    """Raise `StoreInUse` while the lease's holder may be alive.

    - `own`: the caller's incarnation, which may continue.
    - `now_ms`: the wall clock, ms since 1970 UTC.
    - `ended`: token of a lease that the caller has seen end. The clock is ignored then.
    """
    # A run keeps its lease from one of its incarnations to the next.
    if log_state.holder is None or log_state.incarnation == own:
        return
    if ended is not None:
        refuse_if_moved(log_state, ended)
    elif is_held(log_state, now_ms):
        raise _in_use(log_state)


def is_held(log_state: LogState, now_ms: int) -> bool:
    """Return True while the lease's holder may be alive. `now_ms`: the wall clock, ms since 1970 UTC."""
    # A holder that provably died on this host need not be waited for.
    return log_state.holder is not None and log_state.lease_expires_ms > now_ms and not provably_dead(log_state.holder)


def is_restoring(log_state: LogState) -> bool:
    """Return True while a restore of several stores has this one."""
    known = log_state.holder
    return known is not None and not log_state.is_free and known.name.startswith(RESTORING_LINE)


def refuse_if_restoring(log_state: LogState, holder: Holder, now_ms: int) -> None:
    """Raise `RestoreUnderWay` while a restore of several stores, other than `holder`, has this one.

    No clock ends it: a start in between would mix epochs of two lines. Raise `StoreInUse` if the same restore may run in
    another process (`now_ms`: ms since 1970 UTC): each may have read another line under its name.
    """
    known = log_state.holder
    # The name marks the lease also after its term: the restore may have died between two stores, and is then run again.
    if known is None or not is_restoring(log_state):
        return
    target = known.name.removeprefix(RESTORING_LINE)
    if known.name == holder.name:
        if known != holder and is_held(log_state, now_ms):
            raise StoreInUse(
                f"another process restores the stores to {target}",
                holder=known,
                lease_until=_utc(log_state.lease_expires_ms),
                hint="wait until it is over; if it was killed, run the same command again once its lease has ended",
            )
        return
    raise RestoreUnderWay(
        f"a restore of several stores to {target} has begun and is not over",
        target=target,
        hint=f"run the same command again, with the same stores: spark-ckpt restore STORE... --to {shlex.quote(target)}",
    )


def refuse_if_rewinding(log_state: LogState, holder: Holder) -> None:
    """Raise `RewindUnderWay` while a rewind other than `holder` has the store. No clock ends it: half of a rewind may be
    done.
    """
    known = log_state.holder
    if known is None or log_state.is_free or not known.name.startswith(REWINDING) or known.name == holder.name:
        return
    raise RewindUnderWay(
        "a rewind of this outbox's query has begun and is not over",
        rewind=known.name.removeprefix(REWINDING),
        hint="run `spark-ckpt rewind apply` with its plan again, or `spark-ckpt rewind undo` with it",
    )


def refuse_if_adopting(log_state: LogState, holder: Holder) -> None:
    """Raise `EpochNotFound` while the store of an outbox becomes a job's: the job has no epoch of its own yet."""
    known, newest = log_state.holder, log_state.by_id.get(log_state.latest)
    if known is None or log_state.is_free or known.name != ADOPTING or holder.name == ADOPTING:
        return
    # Before the second "created" row the store is still the outbox's, and its driver may go on: then the adoption
    # fails. With an epoch of the job the adoption is done, also if it died before it freed the lease.
    if log_state.kind == "job" and newest is not None and newest.spark_batch is not None:
        raise EpochNotFound(
            "the query of an outbox was being adopted into this store, and that was not finished",
            adopting=known,
            hint="run `spark-ckpt adopt` again with the same checkpoint and store",
        )


def incarnation(
    point: RecoveryPoint,
    holder: Holder,
    now_ms: int,
    lease_ms: int,
    taken_back: Mapping[str, int] = MappingProxyType({}),
) -> NewRow:
    """Return the row that begins an incarnation and acquires the lease for `lease_ms`.

    `taken_back`: see `IncarnationRecord`.
    """
    record = IncarnationRecord(
        incarnation=point.incarnation,
        holder=holder,
        base=point.manifest.epoch,
        restored_from=point.restored_from,
        lease_ms=lease_ms,
        lease_expires_ms=now_ms + lease_ms,
        taken_back=dict(taken_back),
    )
    return row_of(record, point.incarnation, point.manifest.epoch)


def epoch(log_state: LogState, manifest: Manifest, now_ms: int, index: int = 0) -> NewRow | None:
    """Return the row that commits `manifest` and renews the lease. Return None if the log has it already.

    After its release the lease stays free: a commit without an answer may land after the end of its run.

    `index`: the index that the epoch serves at least; 0 without `protocol="index"`.

    Raises `Fenced`, and `RunFailed` if the manifest does not extend the log.
    """
    # Step 7 of docs/design/epoch-in-nine-steps.md.
    known = log_state.by_id.get(manifest.epoch)
    if known is not None and known.attempt == manifest.attempt and known.incarnation == manifest.incarnation:
        return None
    # After the check above: a repeated commit of a replaced driver that landed in time is no error.
    fence(log_state, manifest.incarnation)
    if (
        manifest.job != log_state.job
        or manifest.epoch <= log_state.last  # `last` counts diverged and lost epochs, too: no number comes twice
        # The parent in its branch, and the newest number of any branch.
        or (manifest.base, manifest.previous) != (log_state.latest, log_state.last)
    ):
        raise _not_behind(log_state, manifest)
    # Read on this state: a row of `IndexSaid` may have raised the base's index since the epoch was cut.
    # A base without an index may have read rows of older lines, so its successor serves its own index only.
    entering = index - 1 if log_state.latest and index and not log_state.index else 0
    after = max(log_state.stamp, entering)
    expires_ms = 0 if log_state.is_free else now_ms + log_state.lease_ms
    brief = EpochBrief.of(manifest, expires_ms, max(index, after) if index else 0, after)
    body = manifest.model_dump_json()
    return NewRow("epoch", manifest.epoch, manifest.incarnation, manifest.attempt, brief.model_dump_json(), body)


def heartbeat(log_state: LogState, by: int, expires_ms: int) -> NewRow | None:
    """Return the row that renews the lease until `expires_ms`. Raises `Fenced`.

    Return None after its release: a delayed renewal does not acquire the lease again.
    """
    fence(log_state, by)
    if log_state.is_free:
        return None
    return row_of(Heartbeat(incarnation=by, lease_expires_ms=expires_ms), by)


def release(log_state: LogState, record: Released) -> NewRow | None:
    """Return the row that frees the lease; None if it is free already or if another incarnation has it."""
    # A replaced driver that ends late must not free its successor's lease.
    held = log_state.incarnation == record.incarnation and not log_state.is_free
    return row_of(record, record.incarnation) if held else None


def handover(log_state: LogState, asked: int) -> NewRow | None:
    """Return the row that requests a handover from the driver of incarnation `asked`; None if it was requested before.

    Raises `StoreInUse` if another incarnation runs.
    """
    if log_state.incarnation != asked:
        raise StoreInUse(
            f"incarnation {log_state.incarnation} runs the job now",
            holder=log_state.holder,
            hint="see spark-ckpt lease; to hand over from this driver, run the command again",
        )
    # One row is enough: the driver reads it with its next renewal or epoch, at the latest after a third of the lease.
    return None if log_state.handover_asked else row_of(HandoverAsked(incarnation=asked), asked)


def acks(log_state: LogState, by: int, told: Sequence[SinkAck]) -> NewRow | None:
    """Return the row with the acknowledgements that are new to the log; None if there are none. Raises `Fenced`."""
    fence(log_state, by)
    # A sink may acknowledge an epoch that a manifest has carried already.
    news = tuple(ack for ack in told if ack.epoch > log_state.acked.get(ack.sink, 0))
    return row_of(Published(incarnation=by, acks=news), by) if news else None


def loss(log_state: LogState, newest: int, newest_incarnation: int) -> NewRow | None:
    """Return the row that accepts the loss of epochs above the log's newest up to `newest`.

    Return None if the log has them all, and the incarnations.
    """
    # Incarnations count, too: a reused number would pass the sink's fence as the old publisher.
    if newest <= log_state.last and newest_incarnation <= log_state.incarnation:
        return None
    # The branch runs straight on during an incarnation whose begin the log has. An incarnation known only from an
    # earlier acceptance, of another sink, may have begun anywhere.
    begun = max((each.incarnation for each in log_state.incarnations), default=0)
    on = log_state.latest if 0 < newest_incarnation <= begun else 0
    return row_of(
        LossAccepted(after=log_state.last, epoch=max(newest, log_state.last), incarnation=newest_incarnation, on=on)
    )


def savepoint(log_state: LogState, name: str, named: int) -> NewRow | None:
    """Return the row that names epoch `named`; None if it has the name already.

    Raises `EpochNotFound`, and `ConfigInvalid` for a name in use.
    """
    # Retention drops epochs by the same compare-and-swap, so the epoch is still in the log when the name is.
    if named not in log_state.by_id:
        kept = ", ".join(str(number) for number in sorted(log_state.by_id)) or "none"
        raise EpochNotFound(f"epoch {named} is not in the log", kept=kept, hint="choose a kept epoch")
    known = log_state.savepoints.get(name)
    if known is None:
        return row_of(SavepointRecord(name=name, epoch=named), epoch=named)
    if known != named:
        raise ConfigInvalid(
            f"savepoint '{name}' is epoch {known} already", hint="drop it first, or choose another name"
        )
    return None


def savepoint_dropped(log_state: LogState, name: str) -> NewRow:
    """Return the row that frees the name. Raises `EpochNotFound` if there is no such savepoint."""
    if name not in log_state.savepoints:
        known = ", ".join(sorted(log_state.savepoints)) or "none"
        raise EpochNotFound(f"there is no savepoint '{name}'", savepoints=known)
    return row_of(SavepointDropped(name=name), epoch=log_state.savepoints[name])


def reader(log_state: LogState, moved: ReaderMoved) -> NewRow | None:
    """Return the row that registers a reader of an edge, or moves it; None if it stands there already."""
    known = log_state.readers.get(moved.reader)
    here = (moved.place, moved.edge, moved.position)
    # A reader that has not moved costs no row.
    same = known is not None and (known.row.place, known.row.edge, known.row.position) == here
    return None if same else row_of(moved, epoch=moved.position.epoch)


def index_said(log_state: LogState, by: int, named: int, index: int) -> NewRow | None:
    """Return the row by which epoch `named` serves `index`, too.

    Return None if it does already, or if a newer epoch exists. Raises `Fenced`.
    """
    fence(log_state, by)
    # A newer epoch has stamped its rows with the index that this one had. Raised afterwards, it would contradict them.
    if log_state.latest != named or named not in log_state.by_id or index <= log_state.index:
        return None
    return row_of(IndexSaid(incarnation=by, epoch=named, index=index), by, named)


def _not_behind(log_state: LogState, manifest: Manifest) -> RunFailed:
    return RunFailed(
        "the manifest does not extend the log",
        manifest=f"epoch {manifest.epoch}, base {manifest.base}, previous {manifest.previous}",
        log=f"latest {log_state.latest}, last {log_state.last}",
        job=f"{manifest.job} in the manifest, {log_state.job} in the log",
        hint="start the job again; it continues from the last epoch"
        if log_state.kind == "job"
        else "start the query again; its batch runs again, and the outbox continues from the last epoch",
    )


def refuse_if_moved(log_state: LogState, token: int) -> None:
    """Raise `StoreInUse` if the lease is no longer the one of `token`."""
    if log_state.lease_token != token:
        raise StoreInUse(
            "the lease that was seen to end has been renewed, or taken by another driver",
            holder=log_state.holder,
            since=_utc(log_state.since_ms),
            # A restore of several stores may have restored some: they refuse starts until it was run again.
            hint="run the refused command again: it reads the log again"
            if log_state.kind == "job"
            else "if that driver runs the query, leave it and stop this one; else start this one again: it reads the log again",
        )


def _in_use(log_state: LogState) -> StoreInUse:
    hint = (
        "stop it, or wait until its lease ends. Of a start, Job(..., takeover=True) or the conf key spark.ckpt.takeover=true "
        "replaces it now, and job.start(standby=True) waits for its end"
        if log_state.kind == "job"
        else "stop its query and end its program, or wait until its lease ends"
    )
    return StoreInUse(
        f"another driver runs this {log_state.kind}",
        holder=log_state.holder,
        since=_utc(log_state.since_ms),
        lease_until=_utc(log_state.lease_expires_ms),
        hint=hint,
    )


def _utc(ms: int) -> str:
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
