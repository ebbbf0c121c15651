"""Before anything is decided: what the sinks say they have must be something that the log decided.

A store from a backup, or one whose log lost its end, hands out numbers again that its sinks know already.  Publishing
would be refused then, but only after an epoch was decided that no sink can take; so it is asked at the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from spark_ckpt.connector import Published, SinkContext, TellsPublished
from spark_ckpt.errors import PublishConflict
from spark_ckpt.plan.graph import SinkBinding
from spark_ckpt.protocol.ids import Incarnation
from spark_ckpt.store.sinks_ahead import beyond
from spark_ckpt.store.store import Store


def refuse_newer_sinks(bindings: Iterable[SinkBinding], store: Store) -> None:
    """Raise `PublishConflict` if a sink has what the store's log does not know. Nothing is changed or fenced."""
    incarnation = Incarnation(store.log.state().incarnation)
    asked = {binding.name: binding.sink for binding in bindings if isinstance(binding.sink, TellsPublished)}
    if not asked:
        return
    with ThreadPoolExecutor(len(asked), thread_name_prefix="ckpt-marker") as pool:
        told = {
            name: pool.submit(sink.newest_published, SinkContext(store.job, name, store.id, incarnation))
            for name, sink in asked.items()
        }
    # The log is read after the markers: another driver's newer epoch is in it then.
    log_state = store.log.state()
    known = {name: published for name, answer in told.items() if (published := answer.result()) is not None}
    ahead = {name: why for name, published in known.items() if (why := beyond(published, log_state))}
    if ahead:
        raise _ahead(ahead, [known[name] for name in ahead], store)


def _ahead(ahead: Mapping[str, str], published: Sequence[Published], store: Store) -> PublishConflict:
    """All of them with one error, whose command accepts what all of them have."""
    epoch, incarnation = max(each.epoch for each in published), max(each.incarnation for each in published)
    return PublishConflict(
        "; ".join(f"sink {name} is ahead of the store: {why}" for name, why in ahead.items()),
        sink=", ".join(ahead),
        store=store.location.uri,
        hint="the store is from an older backup, or has lost its newest epochs: bring them back from a newer backup. If "
        "they are lost for good, take the sinks back to the store's newest epoch, because the job produces the rows behind "
        f"it again, and run: spark-ckpt accept-loss {store.location.uri} --epoch {epoch} --incarnation {incarnation}",
    )
