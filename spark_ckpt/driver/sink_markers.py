"""Before anything is decided: what the sinks say they have must be something that the log decided.

A store from a backup, or one whose log lost its end, hands out numbers again that its sinks know already.  Publishing
would be refused then, but only after an epoch was decided that no sink can take; so it is asked at the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from checkpoint_protocols.ids import Incarnation
from spark_ckpt.connector import SinkContext, TellsPublished
from spark_ckpt.plan.graph import SinkBinding
from spark_ckpt.store.sinks_ahead import refusal
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
    markers = {name: published for name, answer in told.items() if (published := answer.result()) is not None}
    if (error := refusal(markers, log_state, store.location.uri)) is not None:
        raise error
