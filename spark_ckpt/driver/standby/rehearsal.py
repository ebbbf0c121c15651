"""Rehearsal: a standby runs one micro-batch of the job's plan on scratch, to pay the extra cost of a first batch.

The batch reads the job's sources from the newest epoch on, restores the epoch's state and runs the user's functions.
Its rows are staged in a folder that is removed. No barrier is injected, so no state is written. Its progress is not
reported, so none of it can be committed or published. A source records consumption only when it is asked for a
cursor, which does not happen here.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from spark_ckpt.coordination.markers import OPEN, ControlMarkers
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.query.control_source import Control
from spark_ckpt.driver.query.failures import failure_of, is_running
from spark_ckpt.driver.query.stage import Stage
from spark_ckpt.driver.query.stage_query import stop_within
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.store.location import Location

_log = logging.getLogger(__name__)
_NEVER_MS = 24 * 3600 * 1000
_POLL_S = 0.05
_STOP_S = 10.0


def runs_here(plan: JobPlan) -> bool:
    """Return true if tasks run only on the driver's host."""
    return str(plan.spark.sparkContext.master).startswith("local")


def scratch_for(plan: JobPlan, name: str) -> Location:
    """Return a folder that driver and executors share, for disposable files of a rehearsal."""
    return Location(str(plan.cache / name)) if runs_here(plan) else plan.run_folder().child(name)


def stage_behind(plan: JobPlan, base: Manifest, incarnation: int, levels: Path, scratch: Location) -> Stage:
    """Return the job's stage as incarnation number `incarnation` would start it after `base`.

    Its tasks write below `scratch`, except for local levels of state, which go to `levels`.
    """
    ours = _on_scratch(plan, scratch)
    key_groups = ours.key_groups(base)
    point = RecoveryPoint(incarnation, base, base.epoch, "rehearsal")
    core, control = EpochProtocol(ours.shape(key_groups), point), Control()
    # Opens the key groups, so that they restore their state; no barrier follows, and none of it can be committed.
    control.inject(ControlMarkers().offer(OPEN, 0))
    return Stage(ours, incarnation, core, control, {}, levels, key_groups)


def can_rehearse(plan: JobPlan, base: Manifest) -> bool:
    """Return true if a batch would write nothing into the store.

    Rows on an edge are written there, so a job with edges is excluded. So is a job with a source that has no cursor:
    it has not begun.
    """
    return not plan.edges and all(node.name in base.cursors for node in plan.sources)


def rehearse(stage: Stage, starting: threading.Lock, is_over: Callable[[], bool]) -> bool:
    """Run one batch; return true if it completed.

    `starting`: lock that is held while the session has the query's settings. `is_over`: stops the rehearsal. Raises
    errors of the plan. A failure of the batch is only logged: the job's driver meets it as well.
    """
    done = threading.Event()
    with starting:
        if is_over():
            return False
        # As a job with waiting rows: a small batch is enough to warm Java and the workers.
        query = stage.start(True, lambda *_: done.set(), is_over)
    try:
        while not is_over() and not done.wait(_POLL_S):
            if not is_running(query):
                _log.warning("the rehearsed batch failed: %s", failure_of(query))
                break
    finally:
        stop_within(query, _STOP_S)
    return done.is_set()


def remove(scratch: Location) -> None:
    """Remove the folder `scratch`."""
    if scratch.local is not None:
        shutil.rmtree(scratch.local, ignore_errors=True)
    else:
        scratch.delete([info.path for info in scratch.list()])


def _on_scratch(plan: JobPlan, scratch: Location) -> JobPlan:
    # One batch: the next trigger is a day away.
    unseen = {"run_dir": scratch.child("runs").uri, "trigger_ms": _NEVER_MS, "trace_dir": None}
    stages = {
        name: replace(stage, root=scratch.child("out", name).uri, storage_options=scratch.storage_options)
        for name, stage in plan.stage_plans.items()
    }
    # Another name, because Spark finds the running query by it.
    return replace(plan, job=f"{plan.job}/rehearsal", config=plan.config.model_copy(update=unseen), stage_plans=stages)
