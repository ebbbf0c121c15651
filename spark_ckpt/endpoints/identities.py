"""Endpoints: read the table, topic or folder of each source and sink, and reconcile it with the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from spark_ckpt.connector import Identified, Sink, Source
from spark_ckpt.epochs import identity
from spark_ckpt.epochs.identity import Confirmed, Found, Parts, Standing, check_sink_unchanged
from spark_ckpt.epochs.restore import unpublished_rows
from spark_ckpt.epochs.ways_back import whole_manifests
from spark_ckpt.errors import CkptError, IdentityChanged, PublishConflict

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_ckpt.epochs.log_state import LogState
    from spark_ckpt.epochs.records import Manifest
    from spark_ckpt.store.epoch_log import EpochLog

_log = logging.getLogger(__name__)


class NamedSource(Protocol):
    """A source and its name in the program."""

    @property
    def name(self) -> str:
        """Name of the source."""

    @property
    def source(self) -> Source:
        """The source."""


class NamedSink(Protocol):
    """A sink and its name in the program."""

    @property
    def name(self) -> str:
        """Name of the sink."""

    @property
    def sink(self) -> Sink:
        """The sink."""


def found(spark: SparkSession, sources: Sequence[NamedSource], bindings: Sequence[NamedSink]) -> Found:
    """Return the current endpoint of each source and sink. Raises the errors of their `check`."""
    return Found(
        {node.name: parts_of(node.source, spark) for node in sources},
        {binding.name: parts_of(binding.sink, spark) for binding in bindings},
    )


def parts_of(connector: Source | Sink, spark: SparkSession) -> dict[str, str]:
    """Return the endpoint of one connector; empty for connectors without one."""
    if not isinstance(connector, Identified):
        return {}
    return {str(name): str(value) for name, value in connector.identity(spark).items()}


def found_again(
    before: Found, spark: SparkSession, sources: Sequence[NamedSource], bindings: Sequence[NamedSink]
) -> Found:
    """Return each endpoint after a failure.

    A connector without an answer keeps its last endpoint: availability is not checked here.
    """

    def again(connector: Source | Sink, parts: Parts) -> Parts:
        try:
            return parts_of(connector, spark)
        except CkptError as error:
            _log.info("identity of %s is not known for now: %s", connector.describe().get("kind"), error.what)
            return parts

    return Found(
        {node.name: again(node.source, before.sources.get(node.name, {})) for node in sources},
        {binding.name: again(binding.sink, before.sinks.get(binding.name, {})) for binding in bindings},
    )


def explained(error: CkptError, name: str, sink: Sink, before: Parts, spark: SparkSession) -> CkptError:
    """Return `IdentityChanged` if a sink contradicts the log because it is another one now, else the error of its publish.

    A topic that is deleted takes its marker along.
    """
    # Only a conflict can mean another table or topic; other errors pass or have their own advice.
    if isinstance(error, PublishConflict):
        try:
            check_sink_unchanged(name, before, parts_of(sink, spark))
        except IdentityChanged as changed:
            return changed
        except CkptError as unknown:
            _log.info("sink %s: its identity is not known for now: %s", name, unknown.what)
    return error


def completed(before: Found, spark: SparkSession, bindings: Sequence[NamedSink]) -> Found:
    """Return the endpoints after sinks have created their tables: unknown parts are read again."""
    again = {
        binding.name: parts_of(binding.sink, spark)
        for binding in bindings
        if not all(before.sinks[binding.name].values())
    }
    return Found(before.sources, {**before.sinks, **again})


def reconciled(
    log: EpochLog,
    log_state: LogState,
    base: Manifest,
    unpublished: Mapping[str, Sequence[Manifest]],
    now: Found,
    confirmed: Confirmed,
    named: bool = False,
) -> Standing:
    """Return the endpoints for a start from `base`; changes nothing. `named`: the start names the epoch, also if it is the
    newest one. Raises `IdentityChanged`, `ConfigInvalid`.
    """
    known = identity.known(
        log_state, base, log.manifest, lambda: whole_manifests(log_state, base.epoch, log.manifest, log.verify), named
    )
    return identity.reconciled(known, now, confirmed, unpublished_rows(base, unpublished), log_state.last)
