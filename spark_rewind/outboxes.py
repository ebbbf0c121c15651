"""Outboxes of plain queries: the epoch of each batch, the endpoints of the sinks, and the epochs that a branch leaves.

An outbox's log has the identity of every batch that it decided: the query's id and the digest of the batch's offsets.
So a batch of a checkpoint, or of a pinned copy of one, has one epoch. A sink's table names epochs, not batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from checkpoint_protocols.ids import Incarnation
from spark_ckpt.connector import SinkContext
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief, SinkIdentity
from spark_ckpt.errors import ConfigInvalid, StoreForeign
from spark_ckpt.outbox.rule import dropped_with, left_behind, owners
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store
from spark_rewind.checkpoint import Batch, QueryCheckpoint
from spark_rewind.plan import LeftEpoch
from spark_rewind.reading import local_folder

_TOPIC = "topic "
"""Beginning of the part of a Kafka sink's endpoint that names its topic."""


@dataclass(frozen=True, slots=True)
class RewoundSink:
    """A sink of an outbox.

    - `table`: folder of its Delta table; None for another kind of sink. `table_id`: empty if unknown.
    - `applications`: names under which its transactions are in the table's log.
    - `incarnations`: names under which the publisher's incarnation is there.
    - `topics`: Kafka topics that it is bound to.
    """

    name: str
    table: Path | None = None
    table_id: str = ""
    applications: tuple[str, ...] = ()
    incarnations: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()


class TableMarker(NamedTuple):
    """Epoch of a transaction in a table, and the batch that it stands for; None if the log no longer has it."""

    query: str
    epoch: int
    batch: int | None

    def __str__(self) -> str:
        return f"{self.query} batch {self.batch}" if self.batch is not None else f"{self.query} epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class RewoundOutbox:
    """The outbox of one query of a plan. `uri`: location of its store; `log_state`: its log when it was read."""

    uri: str
    store: Store
    log_state: LogState
    sinks: tuple[RewoundSink, ...]
    query: QueryCheckpoint

    @property
    def name(self) -> str:
        """Name of the outbox."""
        return self.log_state.job

    def base(self, batch: Batch | None) -> int | None:
        """Return the epoch that the outbox continues from if the query goes back to the end of `batch`.

        `batch`: None for the query's beginning. 0: the outbox begins again. None: the log has no such epoch any more.
        """
        if batch is not None and (found := self._epoch(batch)) is not None:
            return found
        return self._before_first(batch)

    def written(self, application: str, number: int) -> TableMarker | None:
        """Return the epoch that a transaction in a table stands for; None if it is of another application."""
        from spark_ckpt_delta.marker import epoch_in

        if not any(application in sink.applications for sink in self.sinks):
            return None
        epoch = epoch_in(number)
        brief = self.log_state.by_id.get(epoch)
        batch = brief.spark_batch.number if brief is not None and brief.spark_batch is not None else None
        return TableMarker(self.query.name, epoch, batch)

    def owns(self, application: str) -> bool:
        """Return true for a name under which this outbox writes transactions."""
        return any(application in (*sink.applications, *sink.incarnations) for sink in self.sinks)

    def left(self, base: int) -> list[LeftEpoch]:
        """Return `left_epochs` of a branch after `base`."""
        return left_epochs(self.store, self.log_state, base)

    def dropped(self, base: int) -> int:
        """Return the newest epoch that a branch after `base` leaves and that retention dropped; 0 if there is none."""
        return dropped_with(self.log_state, base)

    def pinnable(self, batch: Batch | None) -> int | None:
        """Return the kept epoch that retention must not drop, so that the query can go back to the end of `batch`."""
        base = self.base(batch)
        if base:
            return base
        # The beginning has no epoch of its own: the first one records what came before it.
        first = self._first() if base == 0 else None
        return first.epoch if first is not None else None

    def _epoch(self, batch: Batch) -> int | None:
        # A number is not enough: after a rewind the query runs other batches with the numbers of the ones that were undone.
        wanted = (self.query.query, batch.number, batch.offsets_sha256)
        return max((epoch for epoch, known in self._known() if known == wanted), default=None)

    def _known(self) -> Iterator[tuple[int, tuple[str, int, str]]]:
        for epoch, brief in self.log_state.by_id.items():
            if (known := brief.spark_batch) is not None:
                yield epoch, (known.query, known.number, known.offsets)

    def _before_first(self, batch: Batch | None) -> int | None:
        """Return the base of the query's first epoch, if the query goes back to the batch right before that one."""
        first = self._first()
        known = first.spark_batch if first is not None else None
        if first is None or known is None or (first.base and first.base not in self.log_state.by_id):
            return None
        # The first epoch's batch follows this one, and has recorded the digest of its offsets.
        place = (0, "") if batch is None else (batch.number + 1, batch.offsets_sha256)
        return first.base if (known.number, known.before) == place else None

    def _first(self) -> EpochBrief | None:
        """Return the oldest kept epoch of the query on its current branch."""
        own = [
            brief
            for brief in self.log_state.lineage(_newest(self.log_state))
            if brief.spark_batch is not None and brief.spark_batch.query == self.query.query
        ]
        # A lineage goes from the newest epoch down.
        return own[-1] if own else None


def read_outboxes(uris: Sequence[str], queries: Mapping[str, QueryCheckpoint]) -> list[RewoundOutbox]:
    """Read the logs of outboxes and find the query of each. Changes nothing.

    Raises `ConfigInvalid` for an outbox without a query here, and for two of one query; `StoreForeign` for a job's store;
    the errors of reading a store.
    """
    found: dict[str, RewoundOutbox] = {}
    for uri in uris:
        outbox = _read(uri, queries)
        if (other := found.get(outbox.query.name)) is not None:
            what = f"{other.uri} and {uri} are both outboxes of {outbox.query.name}"
            raise ConfigInvalid(what, hint="name the one that its program opens")
        found[outbox.query.name] = outbox
    return list(found.values())


def left_epochs(store: Store, log_state: LogState, base: int) -> list[LeftEpoch]:
    """Return the epochs with rows that a branch after `base` leaves, oldest first, with the sinks that have them."""
    found = []
    for each in left_behind(log_state, base):
        outputs = store.log.manifest(each.epoch).outputs
        rows = {sink: output.rows for sink, output in sorted(outputs.items()) if output.rows}
        shown, maybe = ([sink for sink in sinks if sink in rows] for sinks in (each.shown, each.maybe))
        found.append(LeftEpoch(epoch=each.epoch, batch=each.batch, rows=rows, shown=shown, maybe=maybe))
    return found


_open: ContextVar[dict[str, Store] | None] = ContextVar("open outboxes", default=None)


@contextmanager
def opened_once() -> Iterator[None]:
    """Open each store once in the block: a handle reads the rows of other processes, and opening reads the whole log."""
    # An apply opened each outbox 19 times without this, which took 40 ms each time.
    token = _open.set({})
    try:
        yield
    finally:
        _open.reset(token)


def opened(uri: str) -> Store:
    """Open the store of an outbox. Raises `StoreForeign` for a job's store, and the errors of `existing_store`."""
    known = _open.get()
    if known is not None and uri in known:
        return known[uri]
    store = existing_store(uri)
    log_state = store.log.state()
    if log_state.kind != "outbox":
        raise StoreForeign(
            f"{uri} is the store of {log_state.kind} '{log_state.job}', not of an outbox",
            hint="a job goes back by itself: `spark-ckpt restore STORE EPOCH`",
        )
    if known is not None:
        known[uri] = store
    return store


def drop_savepoint(uri: str, name: str) -> None:
    """Drop a savepoint of an outbox, also if its query has become a job. Raises `StoreForeign`, `EpochNotFound`."""
    existing_store(uri).log.drop_savepoint(name)


def _read(uri: str, queries: Mapping[str, QueryCheckpoint]) -> RewoundOutbox:
    store = opened(uri)
    log_state = store.log.state()
    ids = owners(log_state)
    if not ids:
        what = f"outbox '{log_state.job}' has committed no batch yet"
        raise ConfigInvalid(what, hint="leave it out of the plan", store=uri)
    query = next((each for owner in ids for each in queries.values() if each.query == owner), None)
    if query is None:
        known = ", ".join(f"{each.query} ({name})" for name, each in sorted(queries.items()))
        what = f"outbox '{log_state.job}' belongs to query {ids[0]}, which is not in the plan"
        raise ConfigInvalid(what, hint=f"name the checkpoint of that query as well; there are: {known}", store=uri)
    # Plans and points are used from other working folders, too.
    return RewoundOutbox(store.location.uri, store, log_state, tuple(_sinks(store, log_state)), query)


def _newest(log_state: LogState) -> int:
    """Return the newest epoch of the current branch, of any branch if that one is at its beginning; 0 for none."""
    return log_state.latest or max(log_state.by_id, default=0)


def _sinks(store: Store, log_state: LogState) -> Iterator[RewoundSink]:
    newest = store.log.manifest(_newest(log_state))
    known = newest.sink_identities
    for name in sorted({*log_state.sinks, *known}):
        yield _sink(name, known.get(name, SinkIdentity()), store)


def _sink(name: str, identity: SinkIdentity, store: Store) -> RewoundSink:
    parts = identity.parts
    if parts.get("kind") == "delta":
        from spark_ckpt_delta.marker import ENGINES, application_id, incarnation_id

        # The names depend on the store and the sink only: any incarnation serves.
        context = SinkContext(store.job, name, store.id, Incarnation(0))
        applications = tuple(application_id(context, engine) for engine in ENGINES)
        incarnations = tuple(map(incarnation_id, applications))
        table = local_folder(parts["path"])
        return RewoundSink(name, table, parts.get("table id", ""), applications, incarnations)
    topics = tuple(sorted(part.removeprefix(_TOPIC) for part in parts if part.startswith(_TOPIC)))
    return RewoundSink(name, topics=topics if parts.get("kind") == "kafka" else ())
