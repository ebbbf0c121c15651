"""Creates the listeners and background services that a job's settings request. A run works the same without them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ckpt.driver.companion import Companion
from spark_ckpt.driver.lag_watch import LagWatch
from spark_ckpt.driver.shown_cursors import ShownCursors
from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import RunListener
from spark_ckpt.observability.aside import Aside

if TYPE_CHECKING:
    from spark_ckpt.driver.job_plan import JobPlan
    from spark_ckpt.driver.progress import Progress
    from spark_ckpt.store.store import Store

_log = logging.getLogger(__name__)


def listeners_of(plan: JobPlan) -> list[RunListener]:
    """Return the listeners that the settings and sources request. Opens endpoints.

    Raises `ConfigInvalid` or `EnvironmentUnfit`.
    """
    found: list[RunListener] = []
    if plan.config.metrics:
        from spark_ckpt.observability.metrics import configured

        found += configured.listeners_of(plan.config.metrics, plan.job)
    if plan.config.lineage:
        found.append(_lineage(plan, plan.config.lineage))
    shown = ShownCursors(plan.sources)
    return [*found, shown] if shown.is_needed else found


def companions_of(plan: JobPlan, progress: Progress, listeners: Sequence[RunListener]) -> list[Companion]:
    """Return the background services that the settings request, not started. A stage has no page of its own.

    Raises `ConfigInvalid` for an address in use, or one that is no address, and `EnvironmentUnfit` for missing
    packages.
    """
    # Listeners with a thread of their own, which starts and ends with the run.
    found: list[Companion] = [each for each in listeners if isinstance(each, ShownCursors | Aside)]
    if plan.config.metrics or plan.config.ui:  # to count the lag costs requests, so only if it is shown
        found += _lag_watch(plan, progress, listeners)
    if plan.config.ui and not plan.stage_stores:
        found.append(page_of(plan.job, [plan.store], plan.config.ui))
    return found


def _lag_watch(plan: JobPlan, progress: Progress, listeners: Sequence[RunListener]) -> list[LagWatch]:
    announcer = Announcer(plan.job, 0, listeners)  # lag belongs to no incarnation

    def tell(rows: Mapping[str, int]) -> None:
        progress.lag_is(rows)
        announcer.lags(rows)

    watch = LagWatch(plan.spark, plan.sources, progress.cursors, tell, plan.config.lag_interval_ms / 1000)
    return [watch] if watch.is_needed else []


def page_of(job: str, stores: Sequence[Store], address: str) -> Companion:
    """Return the page of these stores, not started. `address`: "HOST:PORT", or a port of this machine.

    Raises `ConfigInvalid` for an address in use, or one that is no address, and `EnvironmentUnfit` for missing
    packages.
    """
    host, colon, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (colon and not host):
        raise ConfigInvalid(f"'{address}' is no address for the page", hint="write ui='127.0.0.1:4141', or ui='4141'")
    try:
        from spark_ckpt.observability.page.serving import PageServer
    except ImportError as error:
        raise EnvironmentUnfit("the page needs starlette and uvicorn", hint="pip install 'spark-ckpt[ui]'") from error
    places = [store.location.uri for store in stores]
    options = stores[0].location.storage_options
    server = PageServer(places, host.strip("[]") or "127.0.0.1", int(port), (), options)
    _log.info("job=%s is shown at %s", job, server.url)
    return server


def _lineage(plan: JobPlan, namespace: str) -> RunListener:
    from spark_ckpt.observability.lineage.configured import dataset_end, lineage_of

    sources = [dataset_end(node.name, node.source.describe(), node.schema) for node in plan.sources]
    store = plan.store.location.uri
    sinks = [dataset_end(binding.name, binding.sink.describe(), binding.schema, store) for binding in plan.bindings]
    return lineage_of(namespace, plan.job, plan.store.id, sources, sinks)
