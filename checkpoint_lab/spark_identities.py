"""Endpoints of the job's names, and a start with a wrong endpoint, which the rules have to refuse."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab.spark_rows import SINKS, SOURCES
from spark_ckpt.epochs.identity import Confirmed, Found, Standing, known, reconciled
from spark_ckpt.epochs.restore import RestoreTarget, owed_rows
from spark_ckpt.epochs.ways_back import choice_unseen, whole_manifests
from spark_ckpt.store.epoch_log import EpochLog

FOUND = Found(
    {source: {"topic": f"{source}-1"} for source in SOURCES}, {sink: {"table": f"{sink}-1"} for sink in SINKS}
)
"""Endpoint of every source and sink, as connectors report it."""


def astray(number: int) -> Found:
    """Return endpoints of which one, chosen by `number`, is wrong: a typo, or a re-created table."""
    names = [*SOURCES, *SINKS]
    name = names[number % len(names)]
    if name in SOURCES:
        return replace(FOUND, sources={**FOUND.sources, name: {"topic": "another"}})
    return replace(FOUND, sinks={**FOUND.sinks, name: {"table": "another"}})


def standing(log: EpochLog, target: RestoreTarget, found: Found) -> Standing:
    """Return the endpoints that a start continues with, computed before the driver changes anything.

    Raises `IdentityChanged`.
    """
    log_state = log.state()
    choice = choice_unseen(log_state, target, log.manifest, log.verify)
    owed = owed_rows(choice.base, choice.unpublished)
    said = known(
        log_state,
        choice.base,
        log.manifest,
        lambda: whole_manifests(log_state, choice.base.epoch, log.manifest, log.verify),
    )
    return reconciled(said, found, Confirmed(), owed, log_state.last)
