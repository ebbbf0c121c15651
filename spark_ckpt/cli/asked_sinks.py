"""Reads the markers of sinks for commands, from the endpoints in the log: a command has no program and no sink
object.
"""

from __future__ import annotations

from checkpoint_protocols.ids import Incarnation
from spark_ckpt import connectors
from spark_ckpt.cli.stores import in_terms_of
from spark_ckpt.connector import PublishedEpoch, SinkContext
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.sinks_behind import Behind, behind, endpoints_now, lacking_after, refusal, rows_published
from spark_ckpt.errors import UNREADABLE, CkptError, PublishConflict
from spark_ckpt.store.store import Store


def sinks_behind(store: Store) -> tuple[list[Behind], dict[str, str]]:
    """Return two results: the sinks that lack rows which the newest epoch lists as published, and the reason of each
    sink that did not answer.

    Covers only connectors that can read a marker from an endpoint (`connector.Connector.published`).
    """
    log_state = store.log.state()
    if not log_state.latest:
        return [], {}
    try:
        newest = store.log.manifest(log_state.latest)
    except UNREADABLE:
        return [], {}  # a read of the epoch reports the damage
    markers: dict[str, PublishedEpoch | None] = {}
    unknown: dict[str, str] = {}
    published = rows_published(log_state, newest, store.log.manifest)
    identities = endpoints_now(log_state, store.log.manifest)
    for sink in published:
        parts = identities[sink].parts if sink in identities else {}
        # The names of markers are made of these: with another store's id the sink would answer that it has nothing.
        context = SinkContext(store.job, sink, store.id, Incarnation(log_state.incarnation))
        try:
            kind = parts.get("kind", "")
            ask = connectors.named(kind).connector.published if kind in connectors.names() else None
            if ask is not None:
                markers[sink] = ask(parts, context, store.location.storage_options)
        except CkptError as error:
            unknown[sink] = error.what
    return behind(markers, published), unknown


def refusal_of(store: Store, late: list[Behind]) -> PublishConflict | None:
    """Return the error of a start of the job or query, or None. It lacks the command that only its own sinks know."""
    log_state = store.log.state()
    error = refusal(
        late,
        log_state,
        store.log.manifest,
        store.verify_for(lacking_after(late, log_state, store.log.manifest)),
        lambda sink, epoch: "",
        Confirmed(),
    )
    if error is not None:
        error.hint = in_terms_of(store, error.hint)
    return error
