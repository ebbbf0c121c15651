"""Compares the markers of sinks with the log before the first commit: every published epoch must be committed there.

A store from a backup, or with an incomplete log, assigns epoch numbers again that its sinks already have. A sink
would refuse such a publish, but only after an epoch is committed that no sink can take. So the markers are compared
at the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import DeclaresPublished, PublishedEpoch, SinkContext, TellsPublished
from spark_ckpt.endpoints.identities import NamedSink
from spark_ckpt.epochs import sinks_behind
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.restore import LATEST, RestoreTarget, resolve
from spark_ckpt.epochs.sinks_ahead import refusal
from spark_ckpt.errors import UNREADABLE
from spark_ckpt.store.store import Store


def refuse_newer_sinks(bindings: Iterable[NamedSink], store: Store) -> None:
    """Raise `PublishConflict` if a sink has an epoch that the store's log lacks. Changes and fences nothing."""
    told = _markers_of(bindings, store)
    # The log is read after the markers, so it contains the epochs that another driver commits meanwhile.
    log_state = store.log.state()
    markers = {name: published for name, published in told.items() if published is not None}
    if (error := refusal(markers, log_state, store.location.uri)) is not None:
        raise error


def sinks_taken_back(
    bindings: Sequence[NamedSink], store: Store, restore: RestoreTarget, confirmed: Confirmed
) -> dict[str, int]:
    """Return the sinks that lost published rows, with the newest epoch that each has. Changes nothing.

    `confirmed`: by the start; a sink that replaces another one has lost nothing. For "latest" it raises
    `PublishConflict`: only a restore of a named epoch decides what becomes of these rows.
    """
    # The log is read before the markers: a sink can only gain rows meanwhile, from another driver.
    log_state = store.log.state()
    named = log_state.latest if restore == LATEST else resolve(log_state, restore)[0]
    published = [_published(store, log_state, newest) for newest in {log_state.latest, named}]
    asked = {*log_state.acked, *(name for each in published for name in each)} - confirmed.new_sinks
    judged = [binding for binding in bindings if binding.name in asked]
    # A missing marker may have expired. Only for a sink with permanent markers does it mean that the sink has
    # nothing.
    stays = {binding.name for binding in judged if isinstance(binding.sink, DeclaresPublished)}
    told = {name: marker for name, marker in _markers_of(judged, store).items() if marker is not None or name in stays}
    found = [late for each in published for late in sinks_behind.behind(told, each)]
    if found and restore == LATEST:
        _raise(found, bindings, store, log_state, confirmed)
    # Without any marker, epochs without rows are published again in silence: the next one needs the marker that they leave.
    # With one it may lag behind them: a Delta table gets no commit for an epoch without rows.
    found += [late for late in sinks_behind.behind(told, log_state.acked) if not late.has]
    return sinks_behind.lacking_after(found, log_state, store.log.manifest)


def _published(store: Store, log_state: LogState, newest: int) -> Mapping[str, int]:
    with suppress(*UNREADABLE):  # the start refuses that epoch
        return sinks_behind.rows_published(log_state, store.log.manifest(newest), store.log.manifest) if newest else {}
    return {}


def _raise(
    late: list[sinks_behind.Behind],
    bindings: Sequence[NamedSink],
    store: Store,
    log_state: LogState,
    confirmed: Confirmed,
) -> None:
    def declaring(name: str, epoch: int) -> str:
        sink = next(binding.sink for binding in bindings if binding.name == name)
        context = SinkContext(store.job, name, store.id, Incarnation(log_state.incarnation))
        return sink.declaring(context, Epoch(epoch)) if isinstance(sink, DeclaresPublished) else ""

    verify = store.verify_for(sinks_behind.lacking_after(late, log_state, store.log.manifest))
    error = sinks_behind.refusal(late, log_state, store.log.manifest, verify, declaring, confirmed)
    if error is not None:
        raise error


def _markers_of(bindings: Iterable[NamedSink], store: Store) -> Mapping[str, PublishedEpoch | None]:
    """Return the newest published epoch of each sink that reports it."""
    incarnation = Incarnation(store.log.state().incarnation)
    asked = {binding.name: binding.sink for binding in bindings if isinstance(binding.sink, TellsPublished)}
    if not asked:
        return {}
    with ThreadPoolExecutor(len(asked), thread_name_prefix="ckpt-marker") as pool:
        told = {
            name: pool.submit(sink.newest_published, SinkContext(store.job, name, store.id, incarnation))
            for name, sink in asked.items()
        }
    return {name: answer.result() for name, answer in told.items()}
